"""Checks of speed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import itemgetter
from statistics import median
from typing import ClassVar

from suite.checks.telemetry import busy_host, company, on_gpu, throttled
from suite.checks.utilization import flops_per_token, formula, peak_flops_per_second, tokens_per_second
from suite.core.check import Check
from suite.core.errors import MissingEvidence
from suite.core.evidence import Census, Setup, Step, StepTimes
from suite.core.finding import Finding
from suite.core.trace import Trace
from suite.core.trend import block_medians, trend


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFlopsUtilization(Check):
    """Model FLOPs a second over the card's peak rate; unjudged on a CPU, in fp32 and on a card without a known rate."""

    subject: ClassVar[str] = "speed"
    opt_in: ClassVar[bool] = True
    meaning: ClassVar[str] = (
        "the card waits: for the host that launches small kernels, for data, or for a slow path such as 4-bit "
        "arithmetic in fp32"
    )
    remedy: ClassVar[str] = "look at the compute dtype and the clocks first; then larger micro-batches, fewer launches"

    min_utilization: float
    """A share of the peak rate, such as 0.05."""

    def judge(self, trace: Trace) -> Finding:
        setup, census = trace.one(Setup), trace.all(Census)
        rate = tokens_per_second(trace.steps)
        if rate is None or not census:
            raise MissingEvidence("no step after the warm-up was timed")
        peak = peak_flops_per_second(setup.device_name, setup.precision) if setup.cuda else None
        rows = trace.run["training"]["micro_batch_size"] * trace.run["training"]["gradient_accumulation_steps"]
        row_tokens = sum(step.tokens for step in trace.steps) / len(trace.steps) / rows
        flops = flops_per_token(trace.run, row_tokens, census[0].trainable_parameters, census[0].trainable)
        work = f"{flops / 1e9:.3g} GFLOP a token ({formula(trace.run)})"
        told = f"{rate:,.0f} tokens/s x {work} = {rate * flops / 1e12:.3g} TFLOP/s"
        if peak is None:
            table = "suite/judging/utilization.py"
            reason = f"{setup.device_name} in {setup.precision} has no peak rate in the table of {table}"
            return self.unjudged(f"{reason}; {told}", expected=True)
        share = rate * flops / peak
        detail = f"{told} of {peak / 1e12:,.0f} ({setup.device_name}, dense, datasheet)"
        if not share >= self.min_utilization and (others := busy_host(trace)):
            return self.unjudged(f"{detail}, but the machine was busy: {others}")
        return self.found(share >= self.min_utilization, detail, measured=share, limit=self.min_utilization)
