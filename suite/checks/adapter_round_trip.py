"""Does the adapter survive the disk?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import NumericCheck, some
from suite.evidence import RoundTrip
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRoundTrip(NumericCheck):
    """The saved adapter holds every trained tensor bit for bit and gives the same logits when read back."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"adapters"})
    meaning: ClassVar[str] = (
        "an empty or partial file, renamed keys that the loader ignores, or a fresh adapter instead of the trained one"
    )
    remedy: ClassVar[str] = (
        "compare the file's names with the model's; load with PeftModel.from_pretrained, never with get_peft_model"
    )

    max_error_fp32: float = 1e-6  # 0.0 measured
    max_error_16bit: float = 1e-6

    def judge(self, trace: Trace) -> Finding:
        seen, limit = trace.one(RoundTrip), self.limit(trace)
        problems = [
            f"{len(names)} tensors {what}: {some(names)}"
            for what, names in (
                ("missing in the file", seen.missing),
                ("in the file but not in the model", seen.unexpected),
                ("with other bytes", seen.differing),
                ("of B are zero", seen.zero_b),
                ("are others when they are read back", seen.reread_differing),
            )
            if names
        ]
        if not seen.logit_difference <= limit:
            problems.append("the adapter read back gives other logits")
        detail = "; ".join(problems) or f"{seen.tensors} tensors, {seen.file_bytes:,} bytes"
        return self.found(not problems and seen.tensors > 0, detail, measured=seen.logit_difference, limit=limit)
