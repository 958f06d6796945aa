"""Is the reported time of a step the time that it took?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import ClassVar

from suite.check import Check
from suite.evidence import StepTimes
from suite.finding import Finding
from suite.judging.telemetry import on_gpu
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondsReported(Check):
    """The seconds that the trainer reports for its steps are those that passed in them, the probes' apart."""

    meaning: ClassVar[str] = (
        "a step's time is that of one micro-batch, of the forward pass alone, or of a clock that starts too late: "
        "tokens per second come out too high, and an estimate of the time that is left too low"
    )
    remedy: ClassVar[str] = "take the time from before the first micro-batch until the optimizer has stepped"

    max_error: float = 0.1
    """Of the median step, relative: 0.0002 to 0.006 in healthy runs; a line of the log lies between the clocks."""

    def judge(self, trace: Trace) -> Finding:
        if on_gpu(trace):
            return self.unjudged("on a GPU the calls that were timed here end before their work does", expected=True)
        pairs = list(zip(trace.steps, trace.one(StepTimes).seconds, strict=False))
        ratios = [step.seconds / seconds if seconds > 0 else math.nan for step, seconds in pairs]
        ratio = math.nan if any(map(math.isnan, ratios)) else median(ratios)
        error = abs(ratio - 1)
        detail = f"the median of {len(pairs)} steps is reported as {ratio:.2f} times what passed"
        return self.found(error <= self.max_error, detail, measured=error, limit=self.max_error)
