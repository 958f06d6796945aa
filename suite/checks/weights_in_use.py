"""Does a forward pass use the trained tensors as they are?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import NumericCheck
from suite.evidence import CurrentWeights
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsInUse(NumericCheck):
    """After training, each trained linear, norm and embedding computes with its tensors as they are at that moment."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"trains_base"})
    meaning: ClassVar[str] = (
        "a copy of a weight in another dtype, or a fused or merged matrix, is computed with and does not follow the "
        "updates; or a module is passed by, or leaves out its bias"
    )
    remedy: ClassVar[str] = "look at the module below: who replaced its forward, and when is what it remembers renewed?"

    max_error_fp32: float = 1e-4
    """Rounding gives 1e-6; with all trained tensors halved an old copy is off by 1."""
    max_error_16bit: float = 5e-2

    def judge(self, trace: Trace) -> Finding:
        seen, limit = trace.one(CurrentWeights), self.limit(trace)
        detail = f"worst of {seen.modules} trained modules: {seen.worst}, off by {seen.error:.3g} of its product"
        return self.found(seen.error <= limit and seen.modules > 0, detail, measured=seen.error, limit=limit)
