"""Does the training fit?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.errors import MissingEvidence
from suite.evidence import TRAINING_PHASES, Phase
from suite.finding import Finding
from suite.judging.telemetry import MIB, card_memory, company, on_gpu
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class VramCeiling(Check):
    """While it trains, the tensors on the GPU never take more than this."""

    opt_in: ClassVar[bool] = True
    subject: ClassVar[str] = "memory"
    meaning: ClassVar[str] = (
        "weights that are not 4-bit, logits or activations kept in fp32, checkpointing off, or a leak"
    )
    remedy: ClassVar[str] = (
        "look at quantization_as_asked and checkpointing_as_asked; shorten the rows, or compute the loss in chunks"
    )

    ceiling_mib: int
    """Of the allocator's peak in first step and steady part, in MiB. Loading is reported beside it, not judged."""

    def judge(self, trace: Trace) -> Finding:
        if not on_gpu(trace):
            fell_back = any(attempt.start.device.startswith("cuda") for attempt in trace.attempts)
            return self.unjudged("trained on the CPU: no GPU memory was used", expected=not fell_back)
        phases = trace.all(Phase)
        peaks = [p.peak_allocated_bytes for p in phases if p.name in TRAINING_PHASES and p.peak_allocated_bytes]
        if not peaks:
            raise MissingEvidence("no training phase tells its peak of allocated memory")
        peak_mib = max(peaks) / MIB
        end = trace.main.end
        if peak_mib <= self.ceiling_mib and end is not None and end.outcome == "out_of_memory":
            others = company(trace)
            return self.unjudged(f"memory ran out at {peak_mib:,.0f} MiB" + (f" beside {others}" if others else ""))
        detail = ", ".join(filter(None, [_others(phases), card_memory(trace, TRAINING_PHASES)]))
        return self.found(peak_mib <= self.ceiling_mib, detail, measured=peak_mib, limit=self.ceiling_mib)


def _others(phases: list[Phase]) -> str:
    """The figures that are not judged, in MiB."""
    training = [phase for phase in phases if phase.name in TRAINING_PHASES]
    figures = {
        "loading took": [p.peak_allocated_bytes for p in phases if p.name == "load"],
        "requested": [p.peak_requested_bytes for p in training],
        "reserved": [p.peak_reserved_bytes for p in training],
    }
    known = {words: [value for value in values if value is not None] for words, values in figures.items()}
    sizes = [f"{words} {max(values) / MIB:,.0f} MiB" for words, values in known.items() if values]
    retries = sum(phase.allocation_retries or 0 for phase in training)
    return ", ".join([*sizes, *([f"{retries} allocations tried twice"] if retries else [])])
