"""`--expect` and `tunecheck explain`: keys and their errors, what they open, what is said of every check. fp32, CPU."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch
from traces import healthy, opened, with_run

import tunecheck
from benchmarks.scripts.script import Script
from tunecheck.checks import CHECKS
from tunecheck.core.errors import ConfigError
from tunecheck.core.paths import project_folder
from tunecheck.core.premises import Premise, facts
from tunecheck.listen.declared import WatchedRun
from tunecheck.listen.expectations import EXPECTATIONS, declare, read_expectations
from tunecheck.listen.explain import afterwards, beforehand, lines

pytestmark = pytest.mark.filterwarnings("ignore")  # the script's libraries' own


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("schedul=linear", "did you mean 'schedule'?"),
        ("rate=1e-3", "did you mean 'learning_rate'?"),
        ("nonsense=1", "known keys: supervised, unsupervised, "),
        ("accumulation=0", "should be a whole number of at least 1; for example accumulation=4"),
        ("learning_rate=fast", "should be a number above 0"),
        ("supervised=(", "is not a regular expression"),
        ("schedule=warm", "should be one of linear, cosine, constant"),
        ("loss", "has no value; for example --expect loss=token_mean"),
    ],
)
def test_a_wrong_expectation_is_a_usage_error(words, told):
    """With the value, the rule and the way out."""
    with pytest.raises(ConfigError, match=re.escape(told)):
        read_expectations([words])


def test_a_key_given_twice_is_an_error_and_every_problem_is_told():
    """At once."""
    with pytest.raises(ConfigError, match="appears twice") as error:
        read_expectations(["frozen=a", "frozen=b", "loss=mean"])

    assert len(error.value.problems) == 2


def test_every_key_reads_its_own_example_and_opens_checks_that_exist():
    """The table is whole, and the page of watch has it."""
    page = (project_folder() / "docs" / "watch.md").read_text(encoding="utf-8")
    for key, expectation in EXPECTATIONS.items():
        assert read_expectations([f"{key}={expectation.example}"])
        assert set(expectation.opens) <= set(CHECKS)
        assert f"| `{key}=" in page


LORA = {f"layers.{n}.q_proj.lora_{half}.default.weight": 8 for n in (0, 1) for half in "AB"}
BASE = {"embed.weight": 100, "norm.weight": 10}


def held_to(run, **expect):
    """The run of a model with these tensors under these expectations."""
    declare(run, expect, LORA | BASE)
    return run


def adapted():
    """A run that trains adapters."""
    return WatchedRun.model_construct(trained=frozenset(LORA), parameters=32, lora=object(), premises={}, sources={})


def test_adapters_that_are_expected_to_rest_are_not_declared_to_learn():
    """A of every adapter; one layer; with an embedding that learns besides."""
    run = held_to(adapted(), frozen="lora_A")
    assert {name.split("lora_")[1][0] for name in run.trained} == {"B"}
    assert (run.parameters, run.added, len(run.rests)) == (16, 32, 2)

    run = held_to(adapted(), frozen=r"layers\.1\.", trained="embed")
    assert run.trained == {name for name in LORA if ".0." in name} | {"embed.weight"}
    assert (run.parameters, run.added) == (116, 32)


def test_both_expectations_declare_what_no_object_does():
    """Where every tensor has one of both; else nobody knows the rest."""

    def partial():
        reasons = {Premise.TRAINED_SET_DECLARED: "some tensors are frozen, and no object declares which"}
        return WatchedRun.model_construct(trained=frozenset(BASE), parameters=None, premises=facts(reasons), sources={})

    assert held_to(partial(), trained="lora|norm", frozen="embed").trained == {*LORA, "norm.weight"}
    assert held_to(partial(), trained="lora|norm", frozen="embed").holds(Premise.TRAINED_SET_DECLARED)
    assert not held_to(partial(), trained="norm", frozen="embed").holds(Premise.TRAINED_SET_DECLARED)


def looped(tmp_path, **expect):
    """A loop with a schedule under watch, and what each check said."""
    script = Script(steps=4)
    model, tokenizer = script.model_and_tokenizer()
    examples = script.examples(tokenizer)
    batches = [script.collate(tokenizer, examples[at : at + 2]) for at in range(0, 16, 2)]
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 8)
    held = {"model": model, "optimizer": optimizer, "tokenizer": tokenizer}
    with tunecheck.watch(**held, steps=4, folder=tmp_path, tell=False, expect=expect) as watched:
        for batch in batches[:4]:
            model(**batch).loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return {finding.check: finding for finding in watched.findings}


def test_expectations_open_what_a_loop_does_not_declare(tmp_path):
    """A schedule, what is learned, micro-batches."""
    rates = {"schedule": "linear", "schedule_steps": 8, "learning_rate": 1e-3}
    found = looped(tmp_path, **rates, unsupervised="Question:", supervised=r"\w", trained="q_proj", accumulation=1)

    assert found["learning_rate_trace"].passed
    assert found["as_expected"].passed


def test_what_is_not_as_expected_fails(tmp_path):
    """By the check of the schedule, and by the check of expectations."""
    rates = {"schedule": "constant", "learning_rate": 1e-3}
    found = looped(tmp_path, **rates, supervised="no such text", frozen="lora_A", accumulation=2)

    assert found["learning_rate_trace"].status == "failed"
    assert found["as_expected"].measured == 3
    assert "supervised=no such text: no matching text is supervised in 8 of 8 rows" in found["as_expected"].detail


def test_every_check_is_explained_once():
    """Before a training, and of a trace."""
    trace = with_run(healthy(), premises=opened({"schedule_known": "a loop declares no schedule"}))
    for told in (beforehand(), afterwards(trace)):
        assert sorted(name for names in told.values() for name in names) == sorted(CHECKS)
        assert all(len(line) <= 80 for line in lines(told, 80))
    told = "\n".join(lines(afterwards(trace), 200))

    assert (
        "unjudged: a loop declares no schedule; declare it with --expect learning_rate=... --expect schedule=..."
        in told
    )


def test_the_command_explains_beforehand():
    """Without a training."""
    command = [sys.executable, "-m", "tunecheck.cli", "explain"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=project_folder())

    assert done.returncode == 0
    assert "judged with: adapters of a LoraConfig" in done.stdout
