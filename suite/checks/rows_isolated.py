"""Does a row see only its own past?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from suite.check import NumericCheck
from suite.evidence import ForwardPaths
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsIsolated(NumericCheck):
    """Logits do not change with a later token, with padding, or with the other rows of the batch."""

    meaning: ClassVar[str] = "the attention mask is not causal, padding is attended to, or packed rows read each other"
    remedy: ClassVar[str] = "pass the attention mask; reset positions and attention at row borders; use is_causal"

    max_error_fp32: float = 1e-4  # 0.0 measured
    max_error_16bit: float = 3e-2

    def judge(self, trace: Trace) -> Finding:
        seen, limit = trace.one(ForwardPaths), self.limit(trace)
        values = {
            "a later token": seen.future_token_difference,
            "padding": seen.padding_difference,
            "another row": seen.other_row_difference,
        }
        worst = max(values, key=lambda key: math.inf if math.isnan(values[key]) else values[key])
        detail = f"{worst} changes a row's logits by {values[worst]:.3g} of the largest logit"
        return self.found(values[worst] <= limit, detail, measured=values[worst], limit=limit)
