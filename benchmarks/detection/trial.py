"""One run trained and judged: what failed, what could not be judged, and whether the naive test would have noticed."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.detection.bugs import Fault
from suite.config import find_run, load_run
from suite.core.errors import MissingEvidence
from suite.core.evidence import Evaluation
from suite.core.finding import Finding, Status
from suite.core.trace import Trace

QUICK, CONVERGENCE = "quick/smollm2-135m-qlora", "convergence/smollm2-135m-qlora"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The outcome of one run."""

    outcome: str
    """finished, or how the training ended: failed, crashed, hung, out_of_memory, unavailable."""
    failed: tuple[str, ...]
    """Checks that failed, in the order of a training: the first is the nearest to the cause."""
    unjudged: tuple[str, ...]
    """Checks that lacked their evidence, those left out on purpose (random weights) not counted."""
    naive_alarm: bool
    """Whether the test that everyone writes would have failed."""
    numbers: dict[str, tuple[float, float]]
    """Check to what it measured and its limit, where both are numbers."""
    seconds: float

    @property
    def accused(self) -> bool:
        """Whether anything was said against the run."""
        return self.outcome != "finished" or bool(self.failed or self.unjudged)


def try_run(name: str, settings: Sequence[str], fault: Fault | None = None) -> Trial:
    """Train the run of this name in a fresh process of its own, broken if a fault is given, and judge it.

    Raises ConfigError for settings that do not fit together; whatever goes wrong in the training is in the outcome.
    """
    from suite.runner import Runner

    run = load_run(find_run(name), ["device=cpu", *settings])
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tunecheck-") as folder:
        faults = (fault,) if fault else ()
        runner = Runner(folder=Path(folder), environment={}, gpu=False, say=lambda line: None, faults=faults)
        trace = runner.execute(run)
    findings = [check(trace) for check in run.resolved_checks().values()]
    ends = [attempt.end.outcome if attempt.end else "killed" for attempt in trace.attempts]
    return Trial(
        outcome=next((end for end in ends if end != "finished"), "finished"),
        failed=tuple(f.check for f in findings if f.status is Status.FAILED),
        unjudged=tuple(f.check for f in findings if f.status is Status.UNJUDGED and not f.expected),
        naive_alarm=naive_alarm(trace),
        numbers={f.check: numbers for f in findings if (numbers := _numbers(f)) is not None},
        seconds=time.monotonic() - started,
    )


def naive_alarm(trace: Trace) -> bool:
    """Whether "it ran to its end, every loss is finite, and the loss fell" is wrong.

    It is given more than it usually has: the loss is that of fixed rows in eval mode, free of sampling noise, and any
    fall will do.
    """
    try:
        losses = [step.loss for step in trace.steps]
        probe = [seen.loss for seen in trace.all(Evaluation) if seen.split == "probe"]
    except MissingEvidence:
        return True
    fell = len(probe) > 1 and probe[-1] < probe[0]
    return not (trace.main.finished and all(map(math.isfinite, [*losses, *probe])) and fell)


def _numbers(finding: Finding) -> tuple[float, float] | None:
    measured, limit = finding.measured, finding.limit
    if isinstance(measured, int | float) and isinstance(limit, int | float):
        return float(measured), float(limit)
    return None
