"""Does a recomputed layer compute what it computed the first time?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import NumericCheck
from suite.evidence import Recomputation
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputationEquals(NumericCheck):
    """With gradient checkpointing a row's gradient is what it is without, under the same random state."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"checkpointing"})
    meaning: ClassVar[str] = (
        "recomputed layers are not those of the forward pass: dropout draws other masks, or mode, dtype or adapters "
        "have changed in between, so that the gradient is that of no function"
    )
    remedy: ClassVar[str] = "leave preserve_rng_state on; change nothing of the model between forward and backward"

    max_error_fp32: float = 1e-5
    """0 on a CPU, where the same sums are taken in the same order; a GPU may add in another one."""
    max_error_16bit: float = 5e-2

    def judge(self, trace: Trace) -> Finding:
        seen, limit = trace.one(Recomputation), self.limit(trace)
        detail = f"with {seen.layers} layers recomputed the gradient is {seen.gradient_error:.3g} off"
        return self.found(seen.gradient_error <= limit, detail, measured=seen.gradient_error, limit=limit)
