"""Time: whether the reported seconds are right, whether the pace holds, how much of the GPU is used."""

import math
from operator import itemgetter
from statistics import median

from tunecheck.checks.telemetry import busy_host, on_gpu, other_gpu_processes, throttled
from tunecheck.checks.utilization import flops_per_token, formula, peak_flops_per_second, tokens_per_second
from tunecheck.core.check import Check, recorded, required
from tunecheck.core.errors import MissingEvidence, NotApplicable
from tunecheck.core.evidence import Census, Setup, Step, StepTimes
from tunecheck.core.finding import Finding
from tunecheck.core.trace import Trace
from tunecheck.core.trend import trend


class SecondsReported(Check):
    """The trainer reports the time that each step took, without the probes' own time."""

    needs = frozenset({"own_clock"})
    meaning = """The reported time is that of one micro-batch or of the forward pass alone, or the clock starts late.
    Tokens per second are then too high, and the remaining time too low."""
    remedy = "Measure from before the first micro-batch until the optimizer has stepped."

    max_error: float = 0.1
    """Relative error of the best step: 0.0002 to 0.006 in healthy runs."""
    resolution_seconds: float = 0.005
    """Smallest difference that counts. The outer clock also covers a log line, its flush to disk and the probes'
    dispatch. These add 0.4 ms in each of 270 healthy steps on a 2-core machine."""

    def judge(self, trace: Trace) -> Finding:
        required(not on_gpu(trace), "on a GPU the timed calls return before their work ends")
        pairs = list(zip([step.seconds for step in trace.steps], trace.one(StepTimes).seconds, strict=False))
        recorded(pairs, "there was nothing to compare: no step was timed")
        if any(math.isnan(reported) or not passed > 0 for reported, passed in pairs):
            return self.at_most(math.nan, self.max_error, "the time of a step is nan or not above 0")
        # The step that fits best: a busy machine takes the processor away between the two clocks in some steps, three
        # of five at a load of 6, while a trainer leaves the same part out of every step.
        reported, passed = min(pairs, key=lambda pair: abs(pair[0] - pair[1]) / pair[1])
        error = abs(reported - passed) / passed
        limit = max(self.max_error, self.resolution_seconds / passed)
        which = f"the best of {len(pairs)} steps, {1000 * passed:.3g} ms,"
        detail = f"{which} is reported as {reported / passed:.2f} times its duration"
        # else a step reported at half its time would pass
        required(error > limit or limit <= 0.5, f"steps too short to time: {detail}")
        return self.at_most(error, limit, detail)


FEWEST_STEPS = 50


class ThroughputSteady(Check):
    """The time of steps of equal length stays constant after the warm-up.

    Each step also times a fixed piece of Python. A slower host that explains the steps leaves them unjudged.
    """

    needs = frozenset({"long_run"})
    speed = True
    meaning = "The work grows with each step: a list that is scanned, a log that is rewritten, or a leak."
    remedy = "Profile an early and a late step. Fix memory_flat first if it failed. Check the GPU's clocks."

    warm_up_steps: int = 20
    """Steps in which kernels load, caches fill, clocks rise, and probes read logits."""
    max_change: float = 0.03
    """Growth of the step time over the run, as a share. With 2 % of scatter, healthy runs of 500 steps have 1 %."""
    max_change_cpu: float | None = None
    """The same on the CPU, whose speed depends on other processes. None leaves it unjudged there."""
    confidence: float = 0.999
    """Confidence of the interval, which must exclude 0. A run of a hundred steps may scatter beyond 3 % by chance."""

    def judge(self, trace: Trace) -> Finding:
        if (limit := self.max_change if on_gpu(trace) else self.max_change_cpu) is None:
            raise NotApplicable("trained on the CPU, whose speed depends on other processes")
        steps = [step for step in trace.steps if step.step >= self.warm_up_steps]
        recorded(len(steps) >= FEWEST_STEPS, f"{len(steps)} steps after the warm-up, {FEWEST_STEPS} are needed")
        if odd := [step for step in steps if not 0 < step.seconds < math.inf]:
            seconds = odd[0].seconds
            return self.found(False, f"step {odd[0].step} took {seconds} s", measured=seconds, limit="above 0")
        numbers, times = _at_equal_length(steps)
        change, low, high = self._change(numbers, times)
        detail = f"{change:+.1%} ({low:+.1%} to {high:+.1%}) from step {steps[0].step} to {steps[-1].step}"
        steady = change <= limit or low <= 0
        if not steady and (others := other_gpu_processes(trace)):
            raise MissingEvidence(f"{detail}, but the training was not alone on the GPU: {others}")
        if not steady and (others := busy_host(trace)):
            raise MissingEvidence(f"{detail}, but the machine was busy: {others}")
        if not steady and (host := _of_host(trace, steps)):
            grown, least, _ = self._change(numbers, host)
            left, sure, _ = self._change(numbers, [time - pace for time, pace in zip(times, host, strict=True)])
            if least > 0 and (left <= limit or sure <= 0):
                raise MissingEvidence(f"{detail}, but the host slowed down: the same piece of Python took {grown:+.1%}")
        return self.found(steady, "; ".join(filter(None, [detail, throttled(trace)])), measured=change, limit=limit)

    def _change(self, numbers: list[float], times: list[float]) -> tuple[float, float, float]:
        """Return the growth of these logarithms of seconds from first step to last, as a share, and its interval."""
        found = trend(numbers, times, confidence=self.confidence)
        length = numbers[-1] - numbers[0]
        change, low, high = (math.expm1(slope * length) for slope in (found.slope, found.low, found.high))
        return change, low, high


def _of_host(trace: Trace, steps: list[Step]) -> list[float]:
    """Return the logarithms of the host's own seconds after these steps; empty where they were not taken."""
    times = [seconds for record in trace.whole(StepTimes) for seconds in record.host_seconds]
    if len(times) != len(trace.steps):
        return []
    return [math.log(seconds) for step, seconds in zip(trace.steps, times, strict=True) if step in steps]


def _at_equal_length(steps: list[Step]) -> tuple[list[float], list[float]]:
    """Return step numbers, and the logarithms of the seconds less what follows from the step's number of tokens.

    That exponent is fitted too, between 0, where launching a kernel costs more than its work, and 1, where time is
    proportional to the tokens.
    """
    lengths, seconds = [math.log(max(step.tokens, 1)) for step in steps], [math.log(step.seconds) for step in steps]
    # the median slope of the pairs that lie half the list apart in x: Theil's incomplete method, one pass
    points = sorted(zip(lengths, seconds, strict=True), key=itemgetter(0))
    pairs = zip(points, points[len(points) // 2 :], strict=False)
    slopes = [(second[1] - first[1]) / (second[0] - first[0]) for first, second in pairs if second[0] > first[0]]
    share = min(1.0, max(0.0, median(slopes or [0.0])))
    times = [second - share * length for second, length in zip(seconds, lengths, strict=True)]
    return [float(step.step) for step in steps], times


class ModelFlopsUtilization(Check):
    """Model FLOPs per second reach the configured share of the GPU's peak rate.

    Not judged on a CPU, in fp32, or on a GPU without a known peak rate.
    """

    speed = True
    needs = frozenset({"named"})
    meaning = "The GPU waits for the host to launch kernels, for data, or for a slow path such as 4-bit in fp32."
    remedy = "Check the compute dtype and the clocks first. Then use larger micro-batches and fewer launches."

    min_utilization: float
    """Share of the peak rate, such as 0.05."""

    def judge(self, trace: Trace) -> Finding:
        setup, census = trace.one(Setup), trace.all(Census)
        if (rate := tokens_per_second(trace.steps)) is None or not census:
            raise MissingEvidence("no step after the warm-up was timed")
        peak = peak_flops_per_second(setup.device_name, setup.precision) if setup.cuda else None
        row_tokens = sum(step.tokens for step in trace.steps) / len(trace.steps) / trace.run.rows_per_step
        flops = flops_per_token(trace.run, row_tokens, census[0].trainable_parameters, census[0].trainable)
        work = f"{flops / 1e9:.3g} GFLOP per token ({formula(trace.run)})"
        achieved = f"{rate:,.0f} tokens/s x {work} = {rate * flops / 1e12:.3g} TFLOP/s"
        if peak is None:
            reason = f"{setup.device_name} in {setup.precision} has no peak rate in checks/utilization.py"
            raise NotApplicable(f"{reason}; {achieved}")
        share = rate * flops / peak
        detail = f"{achieved} of {peak / 1e12:,.0f} ({setup.device_name}, dense, datasheet)"
        if not share >= self.min_utilization and (others := busy_host(trace)):
            raise MissingEvidence(f"{detail}, but the machine was busy: {others}")
        return self.found(share >= self.min_utilization, detail, measured=share, limit=self.min_utilization)
