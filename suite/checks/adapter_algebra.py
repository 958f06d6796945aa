"""Does an adapter add (alpha/r) B A x?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import NumericCheck
from suite.evidence import AdapterStart, Census
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterAlgebra(NumericCheck):
    """With a random B, every adapted linear adds exactly (alpha/r) B A x, and the model's logits change."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"adapters"})
    meaning: ClassVar[str] = (
        "the scaling is not alpha/r, factors are transposed, dropout is active though 0, or the adapters are not part "
        "of the forward pass"
    )
    remedy: ClassVar[str] = (
        "compare the measured ratio with alpha, r and alpha/r; check that the wrapped model is the one that is called"
    )

    max_error_fp32: float = 1e-4  # 6e-7 measured
    max_error_16bit: float = 5e-2

    def judge(self, trace: Trace) -> Finding:
        seen, limit = trace.one(AdapterStart), self.limit(trace)
        expected = len(trace.one(Census).expected_trainable) // 2
        problems = []
        if not seen.algebra_error <= limit:
            problems.append(f"{seen.algebra_error_at} is off by {seen.algebra_error:.3g} of (alpha/r) B A x")
        if seen.modules != expected:
            problems.append(f"{seen.modules} adapted linears found, {expected} expected")
        if not seen.logit_change > 0:
            problems.append("the logits do not change with the adapters: they are not applied")
        detail = "; ".join(problems) or f"{seen.modules} adapted linears follow the formula"
        return self.found(not problems, detail, measured=seen.algebra_error, limit=limit)
