"""`tunecheck.watch` around a training of one's own. fp32, CPU."""

from __future__ import annotations

import re
from functools import partial

import pytest
import torch
from transformers import PreTrainedModel, TrainerCallback

import tunecheck
from benchmarks.scripts.bugs import MISTAKES
from benchmarks.scripts.script import Script, plain_loop, trained
from tunecheck.core.evidence import LiveTensors, RowShown
from tunecheck.core.finding import Status
from tunecheck.core.premises import Fact, Premise, Source
from tunecheck.pytest_fixture import Tunecheck

pytestmark = pytest.mark.filterwarnings("ignore")  # the script's libraries' own


def in_a_loop(tmp_path, script, watch=None):
    """The context after a loop of three steps."""
    model, tokenizer = script.model_and_tokenizer()
    rows = script.examples(tokenizer)
    batches = [script.collate(tokenizer, rows[at : at + 2]) for at in range(0, 12, 2)]
    loop = script.loop or partial(plain_loop)
    watch = watch or partial(tunecheck.watch, tell=False)
    with watch(model=model, tokenizer=tokenizer, steps=3, folder=tmp_path) as watched:
        loop(script, model, batches)
    return watched


def test_a_loop_in_the_context_is_judged(tmp_path):
    """The verdict and its findings are there when the block has ended."""
    watched = in_a_loop(tmp_path, Script(steps=3))

    assert watched.verdict == "pass"
    assert sum(finding.passed for finding in watched.findings) >= 20
    trace = tunecheck.read_trace(tmp_path / watched.report.runs[0].trace_file)
    assert set(trace.facts) == set(Premise)
    assert trace.facts[Premise.ADAPTERS_FRESH] == Fact(
        source=Source.DECLARED, where="LoraConfig of the PeftModelForCausalLM"
    )
    assert trace.facts[Premise.STEP_DECLARED].source is Source.OPEN
    shown = trace.all(RowShown)
    assert [row.ended for row in shown] == [True, True]
    assert [piece.kind for piece in shown[0].pieces[:2]] == ["context", "learned"]
    assert shown[0].pieces[0].text.startswith("Question: ")
    assert shown[0].pieces[1].text.endswith("</s>")
    page = watched._repr_html_()
    assert page.startswith("<pre>")
    assert "verdict: PASS" in page
    assert page.count("<blockquote") == 2
    assert "<mark>" in page.partition("verdict: PASS")[2]


def test_lazy_modules_are_heard_once_they_have_made_their_parameters(tmp_path):
    """Those of another model, which has yet to be called, hide no leak."""
    model = torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.LazyLinear(2))
    other = torch.nn.LazyLinear(2)
    optimizer = torch.optim.AdamW(model.parameters())
    with tunecheck.watch(model=model, optimizer=optimizer, steps=5, folder=tmp_path, tell=False) as watched:
        for _ in range(7):
            model(torch.randn(3, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    assert other.weight.requires_grad
    assert watched.verdict == "pass", [str(finding) for finding in watched.findings if not finding.passed]
    (path,) = tmp_path.glob("watch-*.jsonl")
    assert tunecheck.read_trace(path).all(LiveTensors)


def test_a_loop_may_have_several_optimizers(tmp_path):
    """One for each part of its model."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 2))
    optimizers = [torch.optim.AdamW(part.parameters()) for part in model]
    with tunecheck.watch(model=model, optimizer=optimizers, steps=3, folder=tmp_path, tell=False) as watched:
        for _ in range(4):
            model(torch.randn(3, 8)).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    assert any(finding.check == "optimizer_coverage" and finding.passed for finding in watched.findings)


def test_a_block_reports_no_training_before_it(tmp_path):
    """Of another one in the same folder, as a second run of a script has."""
    first = in_a_loop(tmp_path, Script(steps=3))
    second = in_a_loop(tmp_path, Script(steps=3))

    assert [len(watched.report.runs) for watched in (first, second)] == [1, 1]
    assert first.report.runs[0].trace_file != second.report.runs[0].trace_file


def test_a_notebook_is_told_to_wait_for_the_blocks_end():
    """Before it there is no report."""
    waiting = tunecheck.watch(model=torch.nn.Linear(2, 2))
    assert "the report follows" in waiting._repr_html_()


def test_what_is_saved_in_the_block_is_read_back(tmp_path):
    """By a library that was imported before; afterwards nothing of it is hooked."""
    before = PreTrainedModel.save_pretrained, torch.save
    script = Script(steps=3, lora=None)

    def loop(script, model, batches):
        plain_loop(script, model, batches)
        model.save_pretrained(tmp_path / "whole")
        torch.save({f"module.{name}": p for name, p in model.state_dict().items()}, tmp_path / "pytorch_model.bin")
        model.config.save_pretrained(tmp_path)

    script.loop = loop
    watched = in_a_loop(tmp_path / "report", script)
    found = {finding.check: finding for finding in watched.findings}

    assert found["saved_as_trained"].passed
    assert found["export_reads_back"].status is Status.FAILED
    assert "2 files" in found["export_reads_back"].detail
    assert (PreTrainedModel.save_pretrained, torch.save) == before


def test_a_mistake_in_the_fixture_fails_the_test(tmp_path):
    """By the check that is about it."""
    script = Script(steps=3)
    MISTAKES["loop_never_clears"].change(script)
    with pytest.raises(pytest.fail.Exception, match=r"(?s)accumulation_oracle.*FAIL — "):
        in_a_loop(tmp_path, script, Tunecheck(tmp_path).watch)


def test_steps_of_others_in_the_block_are_named(tmp_path):
    """They are no failure; those of a part of the probes' are none."""

    def loop(script, model, batches):
        plain_loop(script, model, batches)
        other = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
        for _ in range(2):
            other(torch.ones(1, 2)).sum().backward()
            optimizer.step()

    watched = in_a_loop(tmp_path, Script(steps=3, loop=loop))

    assert watched.verdict == "pass"
    assert re.search(r"; training not judged: 2 steps of SGD \(test_context.py:\d+\)$", watched.report.headline)


def test_a_trainer_after_another_is_named(tmp_path):
    """The one that was given alone is judged."""
    trainers = []
    script = Script(steps=3, rows=16, built=[trainers.append])
    trained(script, tmp_path)
    trained(script, tmp_path)
    with tunecheck.watch(trainers[0], steps=3, folder=tmp_path / "report", tell=False) as watched:
        for trainer in trainers:
            trainer.train()

    assert watched.report.headline.partition("training not judged: ")[2].startswith("3 steps of AdamW (")


def test_nothing_trained_is_no_pass(tmp_path):
    """And says so."""
    model, _ = Script().model_and_tokenizer()
    with tunecheck.watch(model=model, folder=tmp_path, tell=False) as watched:
        pass

    assert watched.verdict == "inconclusive"
    assert watched.report.runs[0].reason.endswith("can watch: the model made no optimizer step in it")


@pytest.mark.parametrize(
    ("error", "told"),
    [(ValueError("no rows"), "ValueError: no rows"), (KeyboardInterrupt(), "KeyboardInterrupt")],
    ids=["raises", "interrupted"],
)
def test_a_block_that_ends_before_its_first_step_says_how(error, told, tmp_path):
    """The advice for commands would not help."""
    watched = tunecheck.watch(model=torch.nn.Linear(2, 2), folder=tmp_path, tell=False)
    with pytest.raises(type(error)), watched:
        raise error

    assert watched.report.runs[0].reason == f"the block ended before its first step: {told}"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"model": 1, "trainer": 2}, "either a trainer, or a model"),
        ({"model": 1, "steps": 1}, "at least 2"),
        ({"model": 1, "stpes": 1}, "'stpes'"),
        ({"stpes": 1}, "'stpes'"),
    ],
)
def test_a_wrong_call_says_what_to_give(given, told, tmp_path):
    """Before anything is listened to, by the callback too."""
    with pytest.raises((tunecheck.SuiteError, TypeError), match=told):
        tunecheck.watch(**given, folder=tmp_path)


def test_a_callback_listens_from_inside(tmp_path):
    """It finds the Trainer that calls it; other callbacks are called as without it."""
    called = []
    script = Script(steps=3)
    kind = type("Last", (TrainerCallback,), {"on_train_end": lambda *_, **__: called.append("end")})
    watched = tunecheck.watch(steps=3, folder=tmp_path, tell=False)
    script.built.append(lambda trainer: [trainer.add_callback(watched), trainer.add_callback(kind())])
    with pytest.raises(tunecheck.SuiteError, match="pass a trainer or a model"), tunecheck.watch():
        pass
    assert repr(watched) == "<WatchCallback: the training has not ended>"
    trained(script, tmp_path / "out")

    assert watched.verdict == "pass", [str(finding) for finding in watched.findings if not finding.passed]
    assert repr(watched).startswith("<WatchCallback: PASS — ")
    assert sum(finding.passed for finding in watched.findings) >= 30
    assert called == ["end"]
