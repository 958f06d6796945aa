"""Can somebody else use what was trained?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import NumericCheck
from suite.errors import MissingEvidence
from suite.evidence import ReadBack
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterReadsBack(NumericCheck):
    """In a fresh process, transformers and peft alone get the trained model's logits from the saved files."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"read_back"})
    meaning: ClassVar[str] = (
        "the saved files lack something that the training process had in memory: another alpha, other targets, a base "
        "that was changed while it trained"
    )
    remedy: ClassVar[str] = "compare adapter_config.json with the run; look at base_untouched and adapter_round_trip"

    max_error_fp32: float = 1e-4
    """Equal on the CPU; a GPU may choose other kernels in another process."""
    max_error_16bit: float = 0.05
    """peft reads adapters in fp32 whatever they were trained in: products round elsewhere. 0.005 measured in bf16."""
    min_effect: float = 1e-3
    """Of the adapters, on against off: without one the comparison would prove nothing."""

    def judge(self, trace: Trace) -> Finding:
        attempt, limit = trace.last("read back"), self.limit(trace)
        found = attempt.all(ReadBack)
        if not attempt.finished or not found:
            raise MissingEvidence(f"nothing was read back: {attempt.end.detail if attempt.end else 'killed'}")
        seen = found[-1]
        passed = seen.logit_difference <= limit
        detail = f"{len(seen.files)} files, logits differ by {seen.logit_difference:.2g}"
        if seen.adapter_effect is not None:
            passed = passed and seen.adapter_effect >= self.min_effect
            detail += f"; with the adapters off by {seen.adapter_effect:.2g}"
        return self.found(passed, detail, measured=seen.logit_difference, limit=limit)
