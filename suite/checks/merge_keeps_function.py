"""Is the model the same when its adapter is part of the weights?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import NumericCheck, some
from suite.errors import MissingEvidence
from suite.evidence import Merged
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeKeepsFunction(NumericCheck):
    """With the saved adapter merged into its weights the model gives the trained model's logits, and needs no peft."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"merge"})
    meaning: ClassVar[str] = (
        "the adapter was merged into other weights than it was trained beside, the file's instead of the unpacked "
        "4-bit ones, or the sum was rounded to 4 bit again; or it was merged in too low a precision, or not at all"
    )
    remedy: ClassVar[str] = (
        "unpack the 4-bit base (model.dequantize()), put the adapter on that, then merge_and_unload(safe_merge=True)"
    )

    max_error_fp32: float = 1e-4
    """Healthy 1.4e-6 on SmolLM2-135M after 16 steps and up to 5e-7 on a tiny model with LoRA, DoRA and rsLoRA; rounded
    to 4 bit again or merged into the file's weights 0.30, and at least 0.011 on the tiny model."""
    max_error_16bit: float = 0.1
    """Healthy 0.031 in bf16 on the CPU, 28 tokens, which is a plain linear's rounding against a packed one's: 0.031
    unmerged too, 0.029 merged in fp32. The same two faults 0.30."""
    min_effect: float = 1e-3
    """Of the adapter, merged against left out: without one the comparison would prove nothing."""

    def judge(self, trace: Trace) -> Finding:
        attempt, limit = trace.last("merge"), self.limit(trace)
        found = attempt.all(Merged)
        if not attempt.finished or not found:
            raise MissingEvidence(f"nothing was merged: {attempt.end.detail if attempt.end else 'killed'}")
        seen = found[-1]
        passed = seen.logit_difference <= limit and seen.adapter_effect >= self.min_effect
        detail = f"merged, logits differ by {seen.logit_difference:.2g}"
        detail += f"; without the adapter by {seen.adapter_effect:.2g}"
        if seen.adapters_left:
            detail += f"; still adapters: {some(seen.adapters_left)}"
        if seen.packed_left:
            detail += f"; still 4-bit: {some(seen.packed_left)}"
        return self.found(
            passed and not seen.adapters_left and not seen.packed_left,
            detail,
            measured=seen.logit_difference,
            limit=limit,
        )
