"""Does the card do a sensible share of its work?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.errors import MissingEvidence
from suite.evidence import Census, Setup
from suite.finding import Finding
from suite.judging.telemetry import busy_host
from suite.judging.utilization import flops_per_token, formula, peak_flops_per_second, tokens_per_second
from suite.trace import Trace


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
