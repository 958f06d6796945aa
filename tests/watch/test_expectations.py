"""`--expect` and `--explain`: keys and their errors, what they open, what is said of every check. fp32, CPU."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch
from traces import healthy, with_run

import tunecheck
from benchmarks.scripts.script import Script
from suite.checks import CHECKS
from suite.core.errors import ConfigError
from suite.core.paths import project_folder
from suite.watch.expectations import EXPECTATIONS, read_expectations
from suite.watch.explain import afterwards, beforehand, lines

pytestmark = pytest.mark.filterwarnings("ignore")  # the script's libraries' own


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("schedul=linear", "did you mean schedule?"),
        ("nonsense=1", "known keys: supervised, unsupervised, "),
        ("accumulation=0", "should be a whole number of at least 1; for example accumulation=4"),
        ("learning_rate=fast", "should be a number above 0"),
        ("supervised=(", "is no regular expression"),
        ("schedule=warm", "should be one of linear, cosine, constant"),
        ("loss", "lacks a value; for example --expect loss=token_mean"),
    ],
)
def test_a_wrong_expectation_is_a_usage_error(words, told):
    """With the value, the rule and the way out."""
    with pytest.raises(ConfigError, match=re.escape(told)):
        read_expectations([words])


def test_a_key_given_twice_is_an_error_and_every_problem_is_told():
    """At once."""
    with pytest.raises(ConfigError, match="given twice") as error:
        read_expectations(["frozen=a", "frozen=b", "loss=mean"])

    assert len(error.value.problems) == 2


def test_every_key_reads_its_own_example_and_opens_checks_that_exist():
    """The table is whole, and the page of watch has it."""
    page = (project_folder() / "docs" / "watch.md").read_text(encoding="utf-8")
    for key, expectation in EXPECTATIONS.items():
        assert read_expectations([f"{key}={expectation.example}"])
        assert set(expectation.opens) <= set(CHECKS)
        assert f"| `{key}=" in page


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
    assert "supervised=no such text: no such text is learned in 8 of 8 rows" in found["as_expected"].detail


def test_every_check_is_explained_once():
    """Before a training, and of a trace."""
    trace = with_run(healthy(), unjudged={"learning_rate_trace": "a loop declares no schedule"})
    for groups in (beforehand(), afterwards(trace)):
        assert sorted(name for group in groups for name in group.checks) == sorted(CHECKS)
        assert all(len(line) <= 80 for line in lines(groups, 80))
    told = "\n".join(lines(afterwards(trace), 200))

    assert "unjudged: a loop declares no schedule; see --expect learning_rate=... --expect schedule=..." in told


def test_the_command_explains_beforehand():
    """Without a training."""
    command = [sys.executable, "-m", "suite.cli", "watch", "--explain"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=project_folder())

    assert done.returncode == 0
    assert "judged where there is: adapters of a LoraConfig" in done.stdout
