"""Is the reported gradient norm the gradient's?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from suite.check import NumericCheck, relative_error
from suite.errors import MissingEvidence
from suite.evidence import Gradients
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientNormReported(NumericCheck):
    """The norm that the trainer reports is that of the gradients it then uses, before clipping."""

    meaning: ClassVar[str] = (
        "the norm is taken before unscaling, after clipping, or of other tensors: clipping then does "
        "something else than configured"
    )
    remedy: ClassVar[str] = "unscale first, clip second, and report what clip_grad_norm_ returns"

    max_error_fp32: float = 1e-4
    max_error_16bit: float = 1e-2

    def judge(self, trace: Trace) -> Finding:
        reported, worst, detail = {step.step: step for step in trace.steps}, 0.0, "all steps agree"
        limit, compared = self.limit(trace), 0
        for gradients in trace.all(Gradients):
            step = reported.get(gradients.step)
            if step is None or not step.applied:
                continue
            norm = math.hypot(*gradients.norms.values())
            error, compared = relative_error(step.gradient_norm, norm), compared + 1
            if not (error <= worst or math.isnan(worst)):
                worst, detail = (
                    error,
                    f"step {step.step}: reported {step.gradient_norm:.6g}, the gradients have {norm:.6g}",
                )
        if not compared:
            raise MissingEvidence("no applied step has both a reported norm and gradients")
        return self.found(worst <= limit, detail, measured=worst, limit=limit)
