"""The attempts of a trace, and the processes of the one that counts: pure functions of a trace, shared by checks."""

from typing import TypeVar

from tunecheck.core.errors import MissingEvidence
from tunecheck.core.evidence import AttemptPurpose, Record
from tunecheck.core.trace import Attempt, Trace

R = TypeVar("R", bound=Record)


def why_no_reference(trace: Trace) -> str:
    """Return why there is no run to compare the fallback with, in a sentence; empty when there is one."""
    if len(trace.trainings) < 2:
        return "no fallback happened"
    if not trace.main.start.device.startswith("cpu"):
        return f"the fallback ended on {trace.main.start.device}: only a fallback to the CPU has a reference"
    return ""


def reference(trace: Trace) -> Attempt:
    """Return the run that began on the CPU. Raises MissingEvidence when it was not made or did not finish."""
    return finished(trace, AttemptPurpose.REFERENCE)


def finished(trace: Trace, purpose: AttemptPurpose) -> Attempt:
    """Return the last attempt of this purpose. Raises MissingEvidence when there was none or it did not finish."""
    found = trace.last(purpose)
    if not found.finished:
        raise MissingEvidence(f"the {purpose} attempt did not finish: it {found.ending}")
    return found


def of_every_rank(trace: Trace, kind: type[R]) -> dict[int, list[R]]:
    """Return each rank's records of this kind. Raises MissingEvidence where one of the run's processes has none."""
    found = {}
    for rank in range(trace.run.processes):
        if rank not in trace.ranks:
            raise MissingEvidence(f"rank {rank} left no trace")
        try:
            found[rank] = trace.of_rank(rank).all(kind)
        except MissingEvidence as error:
            raise MissingEvidence(f"rank {rank}: {error}") from None
    return found
