"""Does an adapter add (alpha/r) B A x, or what its kind adds instead?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from suite.check import NumericCheck
from suite.evidence import AdapterStart, Census
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterAlgebra(NumericCheck):
    """With a random B, every adapted linear follows its formula, s B A x or DoRA's, and the model's logits change.

    So do its gradients by the adapter's tensors.
    """

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
        expected = sum(".lora_B." in name for name in trace.one(Census).expected_trainable)
        formula = _formula(trace.run["lora"])
        problems = []
        if not seen.algebra_error <= limit:
            problems.append(f"{seen.algebra_error_at} is off by {seen.algebra_error:.3g} of {formula}")
        if seen.modules != expected:
            problems.append(f"{seen.modules} adapted linears found, {expected} expected")
        if not seen.logit_change > 0:
            problems.append("the logits do not change with the adapters: they are not applied")
        detail = "; ".join(problems) or f"{seen.modules} adapted linears add {formula}"
        return self.found(not problems, detail, measured=seen.algebra_error, limit=limit)


def _formula(lora: Mapping[str, Any]) -> str:
    """What an adapter of these settings adds to its linear's output."""
    scale = "alpha/sqrt(r)" if lora.get("use_rslora") else "alpha/r"
    if not lora.get("use_dora"):
        return f"({scale}) B A x"
    return f"(m/n - 1) W x + m/n ({scale}) B A x, n the row norms of W + ({scale}) B A"
