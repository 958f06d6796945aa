"""The attempts of a trace, and the processes of the one that counts: pure functions of a trace, shared by checks."""

import math
from collections.abc import Iterable
from typing import TypeVar

from tunecheck.core.check import recorded, required
from tunecheck.core.errors import MissingEvidence, NotApplicable
from tunecheck.core.evidence import AttemptPurpose, Record, Replica, Window
from tunecheck.core.premises import Premise
from tunecheck.core.trace import Attempt, Trace

R = TypeVar("R", bound=Record)


def reference(trace: Trace) -> Attempt:
    """Return the run that began on the CPU, to compare a fallback with. Raises MissingEvidence when it did not finish.

    Raises NotApplicable where no fallback to the CPU happened.
    """
    required(len(trace.trainings) >= 2, "no fallback happened")
    if not (device := trace.main.start.device).startswith("cpu"):
        raise NotApplicable(f"the fallback ended on {device}: only a fallback to the CPU has a reference")
    return finished(trace, AttemptPurpose.REFERENCE)


def finished(trace: Trace, purpose: AttemptPurpose) -> Attempt:
    """Return the last attempt of this purpose. Raises MissingEvidence when there was none or it did not finish."""
    found = trace.last(purpose)
    recorded(found.finished, f"the {purpose} attempt did not finish: it {found.ending}")
    return found


def of_attempts(attempts: Iterable[Attempt], kind: type[R]) -> list[R]:
    """Return all records of this kind of these attempts."""
    return [record for attempt in attempts for record in attempt.all(kind)]


def of_every_rank(trace: Trace, kind: type[R]) -> dict[int, list[R]]:
    """Return each rank's records of this kind. Raises MissingEvidence where one of the run's processes has none."""
    found = {}
    for rank in range(trace.run.processes):
        recorded(rank in trace.ranks, f"rank {rank} left no trace")
        try:
            found[rank] = trace.of_rank(rank).all(kind)
        except MissingEvidence as error:
            raise MissingEvidence(f"rank {rank}: {error}") from None
    return found


def averaged_at_times(trace: Trace) -> str:
    """Return that the ranks' weights differ and are equal again later, as in local SGD (arXiv 1805.09767); else ""."""
    if trace.holds(Premise.AVERAGED_EACH_STEP):
        return ""
    held = [{seen.steps: seen.digest for seen in trace.of_rank(rank).records(Replica)} for rank in trace.ranks]
    after = {at: len({digests[at] for digests in held}) > 1 for at in sorted(set.intersection(*map(set, held)))}
    differ = next((at for at, differing in after.items() if differing), math.inf)
    again = next((at for at, differing in after.items() if at > differ and not differing), None)
    return "" if again is None else f"ranks differ after {differ} steps and are equal after {again}"


WITH_FIRST_LABELS = "; the trainer also counts each row's first label"


def first_labels_counted(trace: Trace, step: int) -> float:
    """Return the share of the tokens that a trainer counts beside the supervised ones: each row's first label, or 0."""
    counted = next((seen.supervised_tokens for seen in trace.steps if seen.step == step), 0)
    window = next((seen for seen in trace.records(Window) if seen.step == step), None)
    rows = 0 if window is None else len(window.rows)
    return rows / counted if window is not None and counted == window.supervised_tokens + rows else 0.0
