"""Is the window's gradient the sum of its rows' gradients?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from suite.check import NumericCheck
from suite.evidence import Oracle
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class AccumulationOracle(NumericCheck):
    """A window's gradient is the sum of its rows' gradients, batched in another way, over the supervised tokens."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"oracle"})
    meaning: ClassVar[str] = (
        "means of micro-batches averaged, gradients not cleared, padding or another row leaking in, scaled "
        "gradients, a loss in low precision, or no gradient at all"
    )
    remedy: ClassVar[str] = (
        "an error near 1 in all tensors means a wrong scale or old gradients; a small one in all, wrong "
        "weights of the rows"
    )

    max_error_fp32: float = 1e-4  # 1e-6 measured; a softmax in bf16 is off by 3e-4
    max_error_16bit: float = 5e-2
    worst_tensor_factor: float = 4.0
    """How much more a single tensor may differ than the whole gradient."""

    def judge(self, trace: Trace) -> Finding:
        limit, skipped = self.limit(trace), {step.step for step in trace.steps if not step.applied}
        oracles = [oracle for oracle in trace.all(Oracle) if oracle.step not in skipped]
        if not oracles:
            return self.unjudged("the scaler skipped every oracle step: name a later one", expected=True)
        worst = max(oracles, key=lambda o: math.inf if math.isnan(o.gradient_error) else o.gradient_error)
        tensor = max(oracles, key=lambda o: math.inf if math.isnan(o.worst_gradient_error) else o.worst_gradient_error)
        detail = f"step {worst.step} ({worst.split}): error {worst.gradient_error:.3g} of the norm {worst.norm:.4g}"
        detail += f", worst tensor {tensor.worst_gradient} {tensor.worst_gradient_error:.3g} at step {tensor.step}"
        passed = worst.gradient_error <= limit and tensor.worst_gradient_error <= self.worst_tensor_factor * limit
        return self.found(passed, detail, measured=worst.gradient_error, limit=limit)
