"""Findings, rows and reports by hand, for the tests of what prints them."""

from __future__ import annotations

from typing import Any

from tunecheck.core.finding import Finding, Status
from tunecheck.results import Report, RunReport, verdict_of

PASSED = Finding(check="loss_oracle", status=Status.PASSED, measured=1e-7, limit=1e-5)
FAILED = Finding(
    check="base_untouched",
    status=Status.FAILED,
    measured=3.0,
    limit=2.0,
    detail="3 frozen tensors changed",
    rule="Every frozen tensor has the bytes that it had.",
    meaning="the optimizer holds base weights",
    remedy="pass it the trainable parameters only",
    domain="environment",
    evidence="others on the card",
)
MISSING = Finding(check="memory_returned", status=Status.UNJUDGED, detail="the trace holds no Released record")


def row(*findings: Finding, outcome: Any = "pass", **fields: Any) -> RunReport:
    """A run's row with these findings."""
    return RunReport(
        **{"run": "tiny-qlora", "tier": "quick", "model": "tiny", **fields}, findings=findings, outcome=outcome
    )


def other(outcome: Any, name: str, reason: str, **fields: Any) -> RunReport:
    """The row of a run that was not judged."""
    tier, _, run = name.partition("/")
    return RunReport(run=run, tier=tier, model="tiny", outcome=outcome, reason=reason, **fields)


def report(*runs: RunReport, interrupted: bool = False, **fields: Any) -> Report:
    """A session of these runs."""
    verdict = verdict_of(runs, interrupted)
    values = {"started_at": "2026-11-21T04:04:30Z", "seconds": 75.0, **fields}
    return Report(**values, verdict=verdict, interrupted=interrupted, runs=runs)
