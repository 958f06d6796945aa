"""Is the evaluation's loss the loss?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from suite.check import NumericCheck, relative_error, some
from suite.evidence import Evaluation, EvaluationAudit, Setup
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOracle(NumericCheck):
    """The evaluations asked for took place, no others; the last one's loss is other code's, without masks, in fp64."""

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
        missing, uninvited = _missing_and_uninvited(trace)
        lines += [f"never evaluated: {some(missing)}"] if missing else []
        lines += [f"evaluated though not asked to: {some(uninvited)}"] if uninvited else []
        passed = worst <= limit and not coarse and not missing and not uninvited
        return self.found(passed, "; ".join(lines), measured=worst, limit=limit)


def _missing_and_uninvited(trace: Trace) -> tuple[list[str], list[str]]:
    """The evaluations that were asked for, the first and the last among them, and did not take place; and others."""
    asked, seen = trace.run["evaluation"], {(held.step, held.split) for held in trace.all(Evaluation)}
    due = {(at, split) for at in (0, *asked["at"], trace.run["training"]["max_steps"]) for split in asked["splits"]}
    return _told(due - seen), _told(seen - due)


def _told(evaluations: set[tuple[int, str]]) -> list[str]:
    return [f"{split} before step {at}" for at, split in sorted(evaluations)]
