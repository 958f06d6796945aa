"""What a run's fallback left in its trace: pure functions, shared by the checks about it."""

from __future__ import annotations

from suite.core.errors import MissingEvidence
from suite.core.trace import Attempt, Trace


def trainings(trace: Trace) -> list[Attempt]:
    """Every attempt to train, in order: all but the last one had to be made again."""
    return [attempt for attempt in trace.attempts if attempt.start.purpose == "train"]


def why_no_reference(trace: Trace) -> str:
    """Why there is no run to compare the fallback with, in a sentence; empty when there is one."""
    if len(trainings(trace)) < 2:
        return "no fallback happened"
    if not trace.main.start.device.startswith("cpu"):
        return f"the fallback ended on {trace.main.start.device}: only one to the CPU has a reference"
    return ""


def reference(trace: Trace) -> Attempt:
    """The run that began on the CPU. Raises MissingEvidence when it was not made or did not finish."""
    found = trace.last("reference")
    if not found.finished:
        raise MissingEvidence(f"the reference did not finish: {found.end.detail if found.end else 'killed'}")
    return found
