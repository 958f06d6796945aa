"""What a user's answers make of findings. No training, no precision."""

from __future__ import annotations

import pytest
from traces import healthy, with_run

from tunecheck.core.finding import Finding, Status
from tunecheck.core.snapshot import RunSnapshot
from tunecheck.results import answered, summarize

FAILED = Finding(check="finite", status=Status.FAILED)
SUSPECTED = Finding(check="rows_whole", status=Status.SUSPECTED, meant="titles")
PASSED = Finding(check="loss_oracle", status=Status.PASSED)


def test_a_suspicion_fails_when_strict_and_nothing_else_changes():
    """A failure and a pass stay what they are."""
    strict = RunSnapshot({"strict": True})
    assert [answered(f, strict).status for f in (FAILED, SUSPECTED, PASSED)] == [
        Status.FAILED,
        Status.FAILED,
        Status.PASSED,
    ]
    assert answered(SUSPECTED, RunSnapshot({})) is SUSPECTED


def test_an_ignored_finding_keeps_its_reason_and_never_passes():
    """It is counted apart, strict or not; an answer that hides nothing is told."""
    ignore = {"finite": "one bad row", "rows_whole": "titles only", "loss_oracle": "focal"}
    trace, findings = healthy().answered(ignore, strict=True), (FAILED, SUSPECTED, PASSED)
    applied = [answered(finding, trace.run) for finding in findings]
    assert [f.status for f in applied] == [Status.IGNORED, Status.IGNORED, Status.PASSED]
    assert [f.meant for f in applied[:2]] == ["one bad row", "titles only"]
    assert summarize(trace, findings, trace_file="", seconds=0.0).needless == ("loss_oracle",)


@pytest.mark.parametrize(
    ("finding", "ignore", "strict", "outcome"),
    [
        (SUSPECTED, {}, False, "pass"),
        (SUSPECTED, {}, True, "fail"),
        (FAILED, {"finite": "known"}, False, "pass"),
        (FAILED, {"rows_whole": "titles"}, True, "fail"),
    ],
)
def test_answers_make_the_outcome(finding, ignore, strict, outcome):
    """A suspicion fails when strict alone; an answer hides its own check alone."""
    trace = healthy().answered(ignore, strict=strict)
    row = summarize(trace, [PASSED, finding], trace_file="", seconds=0.0)
    assert row.outcome == outcome
    assert len(row.findings) == 2


def test_what_is_ignored_is_no_evidence_of_a_pass():
    """A training of which nothing else was judged is inconclusive."""
    trace = healthy().answered({"finite": "known"}, strict=False)
    assert summarize(trace, [FAILED], trace_file="", seconds=0.0).outcome == "inconclusive"


def test_a_run_of_the_suites_ignores_what_its_file_says():
    """And counts it; another failure fails it still."""
    trace = with_run(healthy(), ignore={"loss_falls": "too short"})
    failed = [Finding(check=check, status=Status.FAILED) for check in ("loss_falls", "finite")]
    passed = Finding(check="base_untouched", status=Status.PASSED)
    rows = [summarize(trace, [*found, passed], trace_file="", seconds=1.0) for found in (failed[:1], failed)]
    assert [(row.outcome, len(row.ignored), len(row.failed)) for row in rows] == [("pass", 1, 0), ("fail", 1, 1)]
