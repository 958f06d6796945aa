"""Does the 4-bit kernel compute what its weights say?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import NumericCheck
from suite.evidence import Quantization
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelAgrees(NumericCheck):
    """A quantised linear's output, and the gradient that it hands down, are products with the weight as other code
    dequantises it.
    """

    applies_to: ClassVar[frozenset[str]] = frozenset({"quantized"})
    meaning: ClassVar[str] = (
        "the 4-bit kernel is wrong on this device or for this shape (bitsandbytes 0.50 on CPUs after an "
        "evaluation, say), or its backward pass is: that dequantises by another path"
    )
    remedy: ClassVar[str] = (
        "update bitsandbytes; try another block size; run tunecheck doctor to see which native library was loaded"
    )

    max_error_fp32: float = 1e-4  # 3e-7 measured on this kind of product, CPU; of the gradient 4e-7
    max_error_16bit: float = 2e-2

    def judge(self, trace: Trace) -> Finding:
        seen, limit = trace.one(Quantization), self.limit(trace)
        detail = (
            f"largest relative error at {seen.kernel_error_at}" if seen.kernel_error_at else "no error in any shape"
        )
        return self.found(seen.kernel_error <= limit, detail, measured=seen.kernel_error, limit=limit)
