"""Is the evaluation's loss the loss?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from suite.check import NumericCheck, relative_error
from suite.evidence import EvaluationAudit, Setup
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOracle(NumericCheck):
    """The reported evaluation loss equals one computed row by row, unpadded, token-weighted, by other code."""

    meaning: ClassVar[str] = (
        "padding counted, batch means averaged, wrong labels, or dropout active: perplexities beyond the "
        "vocabulary come from here"
    )
    remedy: ClassVar[str] = "sum negative log-likelihoods and divide by the supervised tokens once, at the end"

    max_error_fp32: float = 1e-4  # 5e-6 measured
    max_error_16bit: float = 1e-2
    min_logit_digits: int = 20
    """In fp32, whose numbers have 24: a loss of many tokens averages the rounding of 16 bit away, its logits do not."""

    def judge(self, trace: Trace) -> Finding:
        limit, worst = self.limit(trace), 0.0
        exact, coarse = trace.one(Setup).precision == "fp32", False
        lines = []
        for audit in trace.all(EvaluationAudit):
            error = relative_error(audit.reported_loss, audit.oracle_loss)
            error = math.inf if audit.reported_tokens != audit.oracle_tokens else error
            worst = worst if error <= worst or math.isnan(worst) else error
            lines.append(
                f"{audit.split}: reported {audit.reported_loss:.6f} over {audit.reported_tokens} tokens, "
                f"oracle {audit.oracle_loss:.6f} over {audit.oracle_tokens}"
            )
            if exact and audit.logit_digits < self.min_logit_digits:
                coarse = True
                lines[-1] += f", from logits of {audit.logit_digits} binary digits"
        return self.found(worst <= limit and not coarse, "; ".join(lines), measured=worst, limit=limit)
