"""What a verdict of a watched training says that it rests on. Made-up findings, no precision."""

from __future__ import annotations

from report_rows import report, row

from tunecheck.checks import CHECKS, SUBJECTS
from tunecheck.core.finding import Finding, Status
from tunecheck.report.view import session_view

FINDINGS = tuple(
    Finding(check=check, status=status)
    for check, status in {
        "optimizer_coverage": Status.PASSED,
        "rows_come_once": Status.SUSPECTED,
        "rows_whole": Status.UNJUDGED,
        "loss_oracle": Status.IGNORED,
        "adapters_applied": Status.UNJUDGED,
    }.items()
)

UNJUDGED = tuple(Finding(check=check, status=Status.UNJUDGED) for check in ("loss_moves", "finite", "answers_end"))


def test_a_watched_trainings_verdict_counts_what_was_judged_by_subject():
    """A subject of which nothing was judged is said, too; an error's verdict does not list zeros."""
    watched = row(*FINDINGS, tier="watch")
    assert session_view(report(watched)).coverage == ("what learns 1/1", "adapters 0/1", "rows 1/2", "loss 1/1")
    assert session_view(report(row(*FINDINGS, tier="quick"))).coverage == ()
    assert session_view(report(row(FINDINGS[-1], tier="watch"))).coverage == ()


def test_a_watched_trainings_verdict_says_what_it_does_not_rest_on():
    """Suspected and ignored findings were judged. A pass by few checks says so."""
    watched = row(*FINDINGS, tier="watch")
    judged = "1 check passed, 0 failed, 2 unjudged; nothing judged about adapters; 1 suspicion; 1 ignored"
    assert report(watched).headline.endswith(f" — {judged}")
    for outcome, tier, few in (("pass", "watch", True), ("pass", "quick", False), ("fail", "watch", False)):
        told = report(row(*FINDINGS, *UNJUDGED, tier=tier, outcome=outcome)).headline
        assert (" — only 1 check" in told) is few


def test_nothing_judged_lists_no_subjects():
    """An error's verdict has its reason."""
    assert "nothing judged about" not in report(row(FINDINGS[-1], tier="watch")).headline


def test_every_check_has_a_subject():
    """It stands in the table's line."""
    assert SUBJECTS.keys() == CHECKS.keys()
