"""Does the training keep its pace?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import itemgetter
from statistics import median
from typing import ClassVar

from suite.check import Check
from suite.errors import MissingEvidence
from suite.evidence import Step
from suite.finding import Finding
from suite.judging.telemetry import busy_host, company, on_gpu, throttled
from suite.judging.trend import block_medians, trend
from suite.trace import Trace

FEWEST_STEPS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputSteady(Check):
    """From the warm-up to the end, steps of equal length take the same time."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"long_run"})
    subject: ClassVar[str] = "speed"
    meaning: ClassVar[str] = "work that grows with the steps: a list that is walked, a log that is rewritten, a leak"
    remedy: ClassVar[str] = "profile a late step beside an early one; look at memory_flat and at the card's clocks"

    warm_up_steps: int = 10
    """Steps that pay for kernels, caches and rising clocks."""
    max_change: float = 0.03
    """Growth of a step's time over the run, as a share: with a scatter of 2 % a healthy run of 500 steps ends within
    1 %."""
    max_change_cpu: float | None = None
    """The same on the CPU, whose time depends on who else computes there; None: unjudged there."""
    confidence: float = 0.999
    """Of the interval that must exclude 0: a run of a hundred steps may scatter beyond 3 % by chance."""

    def judge(self, trace: Trace) -> Finding:
        limit = self.max_change if on_gpu(trace) else self.max_change_cpu
        if limit is None:
            return self.unjudged("trained on the CPU, whose pace depends on who else computes there", expected=True)
        steps = [step for step in trace.steps if step.step >= self.warm_up_steps]
        if len(steps) < FEWEST_STEPS:
            raise MissingEvidence(f"{len(steps)} steps after the warm-up, {FEWEST_STEPS} are needed")
        if odd := [step for step in steps if not 0 < step.seconds < math.inf]:
            return self.found(False, f"step {odd[0].step} took {odd[0].seconds} s", measured=odd[0].seconds)
        found = trend(*block_medians(*_at_equal_length(steps)), confidence=self.confidence)
        span = steps[-1].step - steps[0].step
        change, low, high = (math.expm1(slope * span) for slope in (found.slope, found.low, found.high))
        detail = f"{change:+.1%} ({low:+.1%} to {high:+.1%}) from step {steps[0].step} to {steps[-1].step}"
        steady = change <= limit or low <= 0
        if not steady and (others := company(trace)):
            return self.unjudged(f"{detail}, but the training was not alone on the card: {others}")
        if not steady and (others := busy_host(trace)):
            return self.unjudged(f"{detail}, but the machine was busy: {others}")
        reasons = throttled(trace)
        return self.found(steady, "; ".join(filter(None, [detail, reasons])), measured=change, limit=limit)


def _at_equal_length(steps: list[Step]) -> tuple[list[float], list[float]]:
    """Step numbers, and the logarithms of the seconds less what follows from the step's number of tokens.

    That share is fitted too, between 0, where each kernel's start costs more than its
    work, and 1, where time is proportional to the tokens.
    """
    lengths, seconds = [math.log(max(step.tokens, 1)) for step in steps], [math.log(step.seconds) for step in steps]
    share = min(1.0, max(0.0, _slope(lengths, seconds)))
    times = [second - share * length for second, length in zip(seconds, lengths, strict=True)]
    return [float(step.step) for step in steps], times


def _slope(xs: list[float], ys: list[float]) -> float:
    """Median slope of the pairs that lie half the list apart in x: Theil's incomplete method, one pass."""
    points = sorted(zip(xs, ys, strict=True), key=itemgetter(0))
    pairs = zip(points, points[len(points) // 2 :], strict=False)
    slopes = [(second[1] - first[1]) / (second[0] - first[0]) for first, second in pairs if second[0] > first[0]]
    return median(slopes) if slopes else 0.0
