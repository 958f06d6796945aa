"""Did every trainable tensor learn?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check, some, trains_16bit_weights
from suite.evidence import Census, Movement
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainableMoved(Check):
    """Every trainable tensor changed, and nearly all elements of each."""

    meaning: ClassVar[str] = (
        "a part of the model is outside the optimizer or the forward pass, or 16-bit weights swallow small updates"
    )
    remedy: ClassVar[str] = (
        "look at trainable_set, optimizer_coverage and lora_gradient_schedule; keep trained weights in fp32"
    )

    min_share: float = 0.5
    """Smallest share of changed elements in any tensor; 1.0 in healthy LoRA runs."""
    min_share_16bit_weights: float = 0.1
    """The same with adapter_dtype: model in 16 bit, which loses small updates: 0.35 measured after four steps."""

    def judge(self, trace: Trace) -> Finding:
        limit = self.min_share_16bit_weights if trains_16bit_weights(trace) else self.min_share
        seen, wanted = trace.one(Movement), len(trace.one(Census).expected_trainable)
        if not any(step.applied and step.learning_rate > 0 for step in trace.steps):
            return self.found(False, "no step was applied with a learning rate above zero", measured=0.0, limit=limit)
        problems = [f"{len(seen.unmoved)} of {wanted} did not move: {some(seen.unmoved)}"] if seen.unmoved else []
        if not seen.smallest_moved_share >= limit:
            problems.append(f"only {seen.smallest_moved_share:.1%} of {seen.smallest_moved_share_at} moved")
        detail = "; ".join(problems) or f"all {wanted} tensors moved"
        return self.found(not problems and wanted > 0, detail, measured=seen.smallest_moved_share, limit=limit)
