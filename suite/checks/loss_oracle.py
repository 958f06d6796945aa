"""Is the reported loss the loss?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from suite.check import NumericCheck, relative_error
from suite.errors import MissingEvidence
from suite.evidence import Oracle
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOracle(NumericCheck):
    """The reported loss of a window equals an independent mean over its supervised tokens."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"oracle"})
    meaning: ClassVar[str] = (
        "labels shifted twice or not at all, padding counted, means averaged over micro-batches, or a loss "
        "scaled by something"
    )
    remedy: ClassVar[str] = (
        "compare the two numbers: a ratio near the accumulation steps points to the normalisation, another "
        "value to the labels"
    )

    max_error_fp32: float = 1e-4  # 1e-7 measured
    max_error_16bit: float = 1e-2

    def judge(self, trace: Trace) -> Finding:
        limit, steps = self.limit(trace), {step.step: step.loss for step in trace.steps}
        errors = {o.step: relative_error(steps[o.step], o.loss) for o in trace.all(Oracle) if o.step in steps}
        if not errors:
            raise MissingEvidence("no oracle step was trained")
        worst = max(errors, key=lambda step: math.inf if math.isnan(errors[step]) else errors[step])
        oracle = next(o for o in trace.all(Oracle) if o.step == worst)
        detail = f"step {worst}: reported {steps[worst]:.6f}, oracle {oracle.loss:.6f} ({oracle.split})"
        return self.found(errors[worst] <= limit, detail, measured=errors[worst], limit=limit)
