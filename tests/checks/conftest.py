"""What holds for every finding of every trace in these tests."""

from __future__ import annotations

import pytest

from tests.traces import RUN, healthy
from tunecheck.core.check import Check
from tunecheck.core.finding import Finding, Status
from tunecheck.core.text import beside_limit


@pytest.fixture(scope="session")
def good():
    """The findings of a healthy training."""
    trace = healthy()
    return {name: check(trace) for name, check in RUN.resolved_checks().items()}


@pytest.fixture(autouse=True)
def _failures_show_why(monkeypatch, good):
    """Every finding that fails shows a measured value that is outside of its limit."""
    failed, judge = [], Check.__call__

    def judged(check, trace):
        finding = judge(check, trace)
        if finding.status is Status.FAILED:
            failed.append(finding)
        return finding

    monkeypatch.setattr(Check, "__call__", judged)
    yield

    assert [str(finding) for finding in failed if not is_outside(finding, good.get(finding.check))] == []


def is_outside(finding: Finding, good: Finding | None) -> bool:
    """Whether the numbers differ as a report shows them, and lie otherwise than those of a good training."""
    if finding.measured is None or finding.limit is None:
        return False
    if good is not None and good.limit == finding.limit and _side(good) and _side(good) == _side(finding):
        return False
    measured, _, limit = beside_limit(finding.measured, finding.limit).partition(", limit ")
    return measured != limit


def _side(finding: Finding) -> int:
    """1 where the measured value lies above the limit, -1 below it; 0 where that cannot be said."""
    difference = _number(finding.measured) - _number(finding.limit)
    return (difference > 0) - (difference < 0)


def _number(value: float | str | None) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
