"""Is fp32 arithmetic fp32?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.evidence import ForwardPaths
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulPrecision(Check):
    """A known fp32 product on this device agrees with float64 to fp32's precision."""

    meaning: ClassVar[str] = "TF32 is on, or the device computes wrongly"
    remedy: ClassVar[str] = (
        "torch.set_float32_matmul_precision('highest'); unset NVIDIA_TF32_OVERRIDE; if it stays, suspect the card"
    )

    max_error: float = 1e-5
    """fp32 gives 2e-7, TF32 about 5e-4."""

    def judge(self, trace: Trace) -> Finding:
        error = trace.one(ForwardPaths).matmul_error
        return self.found(
            error <= self.max_error, "256 x 256 product against float64", measured=error, limit=self.max_error
        )
