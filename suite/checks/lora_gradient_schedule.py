"""Do the adapters get gradients as LoRA's algebra says?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check, some
from suite.errors import MissingEvidence
from suite.evidence import Gradients
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraGradientSchedule(Check):
    """lora_B (and DoRA's magnitude) has a gradient from the start, lora_A from when B has moved on, the base never."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"adapters"})
    meaning: ClassVar[str] = (
        "the gradient is cut before the adapters: reentrant checkpointing with frozen inputs, a detach, an "
        "inference-only kernel after an evaluation, adapters out of the forward pass"
    )
    remedy: ClassVar[str] = (
        "use_reentrant=False; look at the first tensors below and at what their layers have in common"
    )

    def judge(self, trace: Trace) -> Finding:
        moved, problems = False, []
        rates = {step.step: step.learning_rate for step in trace.steps if step.applied}
        skipped = {step.step for step in trace.steps if not step.applied}  # their gradients overflowed: NaN is 0 x inf
        for gradients in trace.all(Gradients):
            if gradients.step in skipped:
                continue
            zero_b = [name for name in gradients.zero if ".lora_B." in name]
            zero_a = [name for name in gradients.zero if ".lora_A." in name]
            if zero_m := [name for name in gradients.zero if ".lora_magnitude_vector." in name]:
                problems.append(f"step {gradients.step}: no gradient for {len(zero_m)} magnitudes: {some(zero_m)}")
            if zero_b:
                problems.append(f"step {gradients.step}: no gradient for {len(zero_b)} lora_B: {some(zero_b)}")
            if moved and zero_a:
                problems.append(
                    f"step {gradients.step}: no gradient for {len(zero_a)} lora_A after B moved: {some(zero_a)}"
                )
            if not moved and gradients.norms.get("lora_A", 0.0) != 0.0:
                problems.append(
                    f"step {gradients.step}: lora_A has a gradient though B is zero: B did not start at zero"
                )
            if gradients.frozen_with_gradient:
                problems.append(
                    f"step {gradients.step}: gradients on frozen tensors: {some(gradients.frozen_with_gradient)}"
                )
            moved = moved or rates.get(gradients.step, 0.0) > 0
        if not moved:
            raise MissingEvidence("no step had a learning rate above zero")
        return self.found(
            not problems, "; ".join(problems[:3]) or f"{len(trace.all(Gradients))} steps as they should be"
        )
