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


def test_a_watched_trainings_verdict_counts_what_was_judged_by_subject():
    """Suspected and ignored findings were judged; a subject of which nothing was judged is said, too."""
    watched = row(*FINDINGS, tier="watch")
    assert session_view(report(watched)).coverage == ("what learns 1/1", "adapters 0/1", "rows 1/2", "loss 1/1")
    assert "1 suspicion; 1 ignored" in report(watched).headline
    assert session_view(report(row(*FINDINGS, tier="quick"))).coverage == ()


def test_nothing_judged_is_no_coverage():
    """An error's verdict does not list zeros."""
    assert session_view(report(row(FINDINGS[-1], tier="watch"))).coverage == ()


def test_every_check_has_a_subject():
    """It stands in the table's line."""
    assert SUBJECTS.keys() == CHECKS.keys()
