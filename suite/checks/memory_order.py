"""Does memory have the order that it must have?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.errors import MissingEvidence
from suite.evidence import Phase
from suite.finding import Finding
from suite.judging.telemetry import MIB, on_gpu
from suite.trace import Trace

ORDER = (("checkpointing", "no checkpointing"), ("as asked", "4 rows"), ("as asked", "lora"), ("lora", "full"))
"""Pairs of variants: the first must take less memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOrder(Check):
    """Checkpointing takes less than none, one row less than 4, 4 bit less than 16, adapters less than all weights."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"memory_order"})
    subject: ClassVar[str] = "memory"
    meaning: ClassVar[str] = (
        "a setting that is to save memory does nothing: weights that were not quantised, a checkpointing flag that "
        "does not reach the layers, gradients of frozen weights"
    )
    remedy: ClassVar[str] = "look at quantization_as_asked, checkpointing_as_asked and trainable_set of the variant"

    max_ratio: float = 0.98
    """Of the peaks of allocated memory, less to more: by arithmetic each of these differences is larger than that."""

    def judge(self, trace: Trace) -> Finding:
        if not on_gpu(trace):
            return self.unjudged("trained on the CPU, which does not tell its peak of allocated memory", expected=True)
        peaks = _peaks(trace)
        pairs = [(less, more, peaks[less] / peaks[more]) for less, more in ORDER]
        wrong = [(less, more) for less, more, ratio in pairs if not ratio <= self.max_ratio]
        told = ", ".join(f"{name} {peak / MIB:,.0f} MiB" for name, peak in peaks.items())
        broken = "; ".join(f"{less} does not take less than {more}" for less, more in wrong)
        worst = max(ratio for _, _, ratio in pairs)
        return self.found(not wrong, f"{broken}: {told}" if wrong else told, measured=worst, limit=self.max_ratio)


def _peaks(trace: Trace) -> dict[str, float]:
    """Peak of allocated bytes by variant. Raises MissingEvidence for a variant that did not finish."""
    peaks = {}
    for attempt in trace.attempts:
        if attempt.start.purpose != "compare":
            continue
        name = attempt.start.reason
        found = [phase.peak_allocated_bytes for phase in attempt.all(Phase) if phase.name == "steady"]
        if not attempt.finished:
            told = f"ended as {attempt.end.outcome}: {attempt.end.detail}" if attempt.end else "was killed"
            raise MissingEvidence(f"the variant {name!r} {told}")
        if not found or not found[-1]:
            raise MissingEvidence(f"the variant {name!r} does not tell its peak")
        peaks[name] = float(found[-1])
    if lacking := {name for pair in ORDER for name in pair} - peaks.keys():
        raise MissingEvidence(f"no attempt was made with the variant {', '.join(sorted(lacking))}")
    return peaks
