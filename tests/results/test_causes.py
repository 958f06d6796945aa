"""Which failure explains which others: a report begins with the cause, and hides nothing."""

from __future__ import annotations

from dataclasses import replace
from graphlib import TopologicalSorter

import pytest
from traces import healthy

from benchmarks.scripts.corpus import traces
from tunecheck.checks import CHECKS
from tunecheck.core.finding import Finding, Status
from tunecheck.report.view import run_view
from tunecheck.results import RunReport
from tunecheck.results.causes import CONSEQUENCES, RULED_OUT, consequences, explained, plausible, ruled_out
from tunecheck.results.rejudge import judged_again


def finding(check: str, status: Status = Status.FAILED) -> Finding:
    """A finding of this check."""
    return Finding(check=check, status=status, detail="x")


def test_the_table_names_checks_and_has_no_circle():
    """So that each chain has a beginning."""
    assert {name for cause, effects in CONSEQUENCES.items() for name in (cause, *effects)} <= CHECKS.keys()
    assert tuple(TopologicalSorter(CONSEQUENCES).static_order())


def test_consequences_of_consequences_follow():
    """And nothing explains its own cause."""
    assert "trainable_moved" in consequences("optimizer_coverage")
    assert "adapters_applied" in consequences("optimizer_coverage")
    assert "optimizer_coverage" not in consequences("trainable_moved")


def test_a_chain_is_explained_by_its_beginning():
    """Not by the link before."""
    seen = explained([finding(check) for check in ("labels_as_configured", "loss_oracle", "accumulation_oracle")])
    assert [one.because for one in seen] == ["", "labels_as_configured", "labels_as_configured"]


def test_a_cause_that_is_ruled_out_is_left_out():
    """By a check that passed, or by what the training has; the tables name causes of the checks."""
    assert all(any(cause in check.meaning for check in CHECKS.values()) for cause in RULED_OUT)
    assert {unless for unless in RULED_OUT.values() if isinstance(unless, str)} <= CHECKS.keys()
    failed = replace(finding("loss_oracle"), meaning=CHECKS["loss_oracle"].meaning)
    for status, left in ((Status.PASSED, False), (Status.UNJUDGED, True)):
        told = plausible(failed, [failed, finding("no_target_leakage", status)], healthy()).meaning
        assert ("Labels are shifted" in told) is left
        assert "smoothing" not in told  # none is declared
        assert told.startswith("The mean counts padding. Micro-batch") or left
    alone = replace(failed, meaning="Labels are shifted twice or not at all.")
    assert plausible(alone, [finding("no_target_leakage", Status.PASSED)], healthy()) == alone


def test_two_causes_stand_beside_each_other():
    """Neither is folded."""
    seen = explained([finding("labels_as_configured"), finding("calls_in_order"), finding("state_in_training")])
    assert [one.because for one in seen] == ["", "", ""]


@pytest.mark.parametrize(
    ("cause", "effect", "because"),
    [
        (Status.PASSED, Status.FAILED, ""),
        (Status.UNJUDGED, Status.FAILED, ""),
        (Status.IGNORED, Status.FAILED, ""),
        (Status.SUSPECTED, Status.FAILED, ""),
        (Status.FAILED, Status.PASSED, ""),
        (Status.FAILED, Status.SUSPECTED, "state_in_training"),
        (Status.SUSPECTED, Status.SUSPECTED, "state_in_training"),
    ],
)
def test_only_what_is_broken_explains(cause, effect, because):
    """A suspicion, which may be meant, explains no failure."""
    seen = explained([finding("state_in_training", cause), finding("randomness_varies", effect)])
    assert seen[1].because == because


def test_a_saved_adapter_that_no_optimizer_held_is_no_question_of_its_own():
    """It looks like one that was just made."""
    seen = explained([finding("optimizer_coverage"), finding("saved_as_trained", Status.SUSPECTED)])
    assert seen[1].because == "optimizer_coverage"


def test_what_follows_from_an_ignored_finding_is_asked_about():
    """It may be meant, too: one question for its whole chain, and nothing fails that the user has answered."""
    chain = [finding("labels_as_configured", Status.IGNORED), *map(finding, ("loss_oracle", "accumulation_oracle"))]
    asked = explained(chain, ask=True)
    assert [one.status for one in asked] == [Status.IGNORED, Status.SUSPECTED, Status.SUSPECTED]
    assert [one.because for one in asked] == ["", "", "loss_oracle"]
    assert asked[1].meant == "it may follow from labels_as_configured, which is ignored"

    assert [one.status for one in explained(chain)[1:]] == [Status.FAILED] * 2  # strict, or a run of the suite's own
    also_broken = explained([*chain, finding("mask_and_positions")], ask=True)
    assert [one.status for one in also_broken[1:]] == [Status.FAILED] * 3  # something else explains them as well
    assert explained([chain[0], finding("trainable_set")], ask=True)[1].status is Status.FAILED


def test_a_suspicion_that_has_a_reason_of_its_own_is_not_explained():
    """The check found something else than a failure there."""
    seen = explained([finding("calls_in_order"), finding("accumulation_oracle", Status.SUSPECTED)])
    assert seen[1].because == ""


def test_the_view_folds_consequences_under_their_cause_and_names_them():
    """Each still counts as a failure."""
    findings = explained(
        [finding("labels_as_configured"), finding("mask_and_positions", Status.PASSED), finding("loss_oracle")]
    )
    report = RunReport(run="train", tier="watch", model="m", outcome="fail", findings=tuple(findings))
    (shown,) = run_view(report).failures
    assert shown.check == "labels_as_configured"
    rows = dict(shown.rows)
    assert rows["also failed"] == "because of it: loss_oracle"
    assert "also suspected" not in rows
    assert rows["not the cause"] == "mask_and_positions: passed"
    assert len(report.failed) == 2  # and both are counted


def test_a_consequence_that_is_only_suspected_did_not_fail():
    """The line says so."""
    findings = explained([finding("state_in_training"), finding("randomness_varies", Status.SUSPECTED)])
    report = RunReport(run="train", tier="watch", model="m", outcome="fail", findings=tuple(findings))
    rows = dict(run_view(report).failures[0].rows)
    assert rows["also suspected"] == "because of it: randomness_varies"
    assert "also failed" not in rows


def test_what_passed_rules_out_what_it_would_explain():
    """What is unjudged rules out nothing."""
    findings = [finding("mask_and_positions", Status.PASSED), finding("base_matches_file", Status.UNJUDGED)]
    assert ruled_out(finding("loss_oracle"), findings) == ["mask_and_positions"]


@pytest.mark.slow
def test_no_mistake_that_was_ever_named_hides_behind_another_check():
    """Every kept mistake is shown by a check that names it."""
    hidden = {}
    for kept, trace in traces():
        found = {one.check: one.because for one in judged_again(trace, [], trace_file=kept.file).findings}
        named = [check for check in kept.named_by if check in found]
        if named and all(found[check] and found[check] not in kept.named_by for check in named):
            hidden[kept.name] = {check: found[check] for check in named}
    assert not hidden
