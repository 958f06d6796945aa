"""Is everything finite?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check, some
from suite.evidence import Evaluation, Gradients, Movement
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Finite(Check):
    """No loss, gradient norm, gradient or weight is NaN or infinite in an applied step."""

    meaning: ClassVar[str] = "overflow (fp16 above all), a division by zero supervised tokens, or a damaged card"
    remedy: ClassVar[str] = "look at the first step below; use bf16; check rows without labels"

    def judge(self, trace: Trace) -> Finding:
        problems = [
            f"step {step.step}: loss {step.loss}, gradient norm {step.gradient_norm}"
            for step in trace.steps
            if step.applied and not (math.isfinite(step.loss) and math.isfinite(step.gradient_norm))
        ]
        skipped = {step.step for step in trace.steps if not step.applied}
        problems += [
            f"step {g.step}: gradients of {some(g.nonfinite)}"
            for g in trace.all(Gradients)
            if g.nonfinite and g.step not in skipped
        ]
        problems += (
            [f"weights after training: {some(trace.one(Movement).nonfinite)}"] if trace.one(Movement).nonfinite else []
        )
        problems += [
            f"evaluation before step {e.step}: {e.loss}" for e in trace.all(Evaluation) if not math.isfinite(e.loss)
        ]
        return self.found(not problems, "; ".join(problems[:3]) or f"{len(trace.steps)} steps")
