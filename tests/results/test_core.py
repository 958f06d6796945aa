"""A pass of a training of the user's own rests on its core. No training, no precision."""

from __future__ import annotations

import pytest
from traces import healthy, opened, with_run

from tunecheck.checks import CHECKS, SUBJECTS
from tunecheck.core.finding import Finding, Status
from tunecheck.results import without_core

LLAMA = with_run(healthy(), tier="watch")
GPT = with_run(LLAMA, premises=opened({"causal_lm": "only its own code defines the rows and the loss of a GPT"}))


def found(*unjudged):
    """One finding of every check, those about these subjects without a judgement."""
    return [
        Finding(check=name, status=Status.UNJUDGED, detail=f"no {SUBJECTS[name]}", expected=True)
        if SUBJECTS[name] in unjudged
        else Finding(check=name, status=Status.PASSED)
        for name in CHECKS
    ]


@pytest.mark.parametrize("subject", ["what learns", "rows", "gradients", "optimizer", "loss"])
def test_nothing_passes_without_its_core(subject):
    """It says which subject no check could judge, and why."""
    assert without_core(LLAMA, found()) == ""
    told = without_core(LLAMA, found(subject))
    assert told == f"nothing about {subject} could be judged: no {subject}"


def test_the_loss_of_another_model_is_no_part_of_its_core():
    """Only its own code knows it; the rest of the core is asked of it all the same."""
    assert without_core(GPT, found("loss")) == ""
    assert without_core(GPT, found("loss", "rows")).startswith("nothing about rows")


def test_one_judged_check_is_enough_of_a_subject():
    """A suspicion and what the user ignores were judged, too."""
    findings = found("rows")
    for status in (Status.PASSED, Status.SUSPECTED, Status.IGNORED):
        judged = Finding(check="rows_come_once", status=status)
        assert without_core(LLAMA, [*findings, judged]) == ""
