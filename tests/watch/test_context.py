"""`tunecheck.watch` around a training of one's own. fp32, CPU."""

from __future__ import annotations

from functools import partial

import pytest

import tunecheck
from benchmarks.scripts.bugs import MISTAKES
from benchmarks.scripts.script import Script, plain_loop

pytestmark = pytest.mark.filterwarnings("ignore")  # the script's libraries' own


def in_a_loop(tmp_path, script):
    """The context after a loop of three steps."""
    model, tokenizer = script.model_and_tokenizer()
    rows = script.examples(tokenizer)
    batches = [script.collate(tokenizer, rows[at : at + 2]) for at in range(0, 12, 2)]
    loop = script.loop or partial(plain_loop)
    with tunecheck.watch(model=model, tokenizer=tokenizer, steps=3, folder=tmp_path, tell=False) as watched:
        loop(script, model, batches)
    return watched


def test_a_loop_in_the_context_is_judged(tmp_path):
    """The verdict and its findings are there when the block has ended."""
    watched = in_a_loop(tmp_path, Script(steps=3))

    assert watched.verdict == "pass"
    assert sum(finding.passed for finding in watched.findings) >= 20


def test_a_mistake_in_the_context_is_named(tmp_path):
    """By the check that is about it."""
    script = Script(steps=3)
    MISTAKES["loop_never_clears"].change(script)
    watched = in_a_loop(tmp_path, script)

    assert watched.verdict == "fail"
    assert "accumulation_oracle" in {finding.check for finding in watched.findings if finding.status == "failed"}


def test_nothing_trained_is_no_pass(tmp_path):
    """And says so."""
    model, _ = Script().model_and_tokenizer()
    with tunecheck.watch(model=model, folder=tmp_path, tell=False) as watched:
        pass

    assert watched.verdict == "inconclusive"
    assert "nothing that tunecheck could listen to" in watched.report.runs[0].reason


@pytest.mark.parametrize(
    ("given", "told"), [({}, "either a trainer, or a model"), ({"model": 1, "steps": 1}, "at least 2")]
)
def test_a_wrong_call_says_what_to_give(given, told, tmp_path):
    """Before anything is listened to."""
    with pytest.raises(tunecheck.SuiteError, match=told):
        tunecheck.watch(**given, folder=tmp_path)
