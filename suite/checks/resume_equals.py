"""Does a resumed run go on as if nothing had happened?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from suite.check import NumericCheck, relative_error
from suite.errors import MissingEvidence
from suite.evidence import Step, Trained
from suite.finding import Finding
from suite.trace import Trace

MAX_RATE_ERROR = 1e-9
"""The rate is float64 arithmetic whatever the precision of the training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeEquals(NumericCheck):
    """From the checkpoint of the middle, a fresh process has the losses, rates and tensors of the uninterrupted run."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"resume"})
    meaning: ClassVar[str] = (
        "optimizer state, schedule, data position or random state is missing in the checkpoint, or the "
        "adapter is loaded frozen or fresh"
    )
    remedy: ClassVar[str] = (
        "a jump at the first step points to weights or data, a drift to optimizer or schedule; compare the "
        "columns below"
    )

    max_error_fp32: float = 1e-6
    max_error_16bit: float = 1e-3

    def judge(self, trace: Trace) -> Finding:
        first = {step.step: step for step in trace.steps}
        again, limit = trace.last("resume"), self.limit(trace)
        if not again.finished:
            raise MissingEvidence(f"the resumed run did not finish: {again.end.detail if again.end else 'killed'}")
        steps = again.all(Step)
        start, end = trace.run["probes"]["resume_from"], trace.run["training"]["max_steps"]
        if [step.step for step in steps] != list(range(start, end)):
            return self.found(
                False, f"the resumed run took steps {[s.step for s in steps][:3]}..., not {start} to {end - 1}"
            )
        worst, detail = 0.0, f"{len(steps)} steps equal from step {start} on"
        for step in steps:
            other = first.get(step.step)
            if other is None:
                raise MissingEvidence(f"the uninterrupted run has no step {step.step}")
            error = relative_error(step.loss, other.loss)
            if not relative_error(step.learning_rate, other.learning_rate) <= MAX_RATE_ERROR:
                error = math.inf
            if not (error <= worst or math.isnan(worst)):
                worst = error
                detail = f"step {step.step}: loss {step.loss:.6f} and rate {step.learning_rate:.4g}, uninterrupted "
                detail += f"{other.loss:.6f} and {other.learning_rate:.4g}"
        if worst <= limit and (drifted := _drifted(trace.one(Trained), again.all(Trained))):
            name, worst = max(drifted.items(), key=lambda item: math.inf if math.isnan(item[1]) else item[1])
            detail += f"; {name} differs by {worst:.2g} after the last one"
        same_scaler = all(ended.scaler == trace.one(Trained).scaler for ended in again.all(Trained))
        detail += "" if same_scaler else "; the gradient scaler's state is another one"
        return self.found(worst <= limit and same_scaler, detail, measured=worst, limit=limit)


def _drifted(first: Trained, again: list[Trained]) -> dict[str, float]:
    """Relative differences of the trained tensors' norms. Raises MissingEvidence when they were not taken."""
    if not again:
        raise MissingEvidence("the resumed run did not tell what its tensors became")
    return {
        name: relative_error(again[-1].norms.get(name, math.nan), norm)
        for name, norm in first.norms.items()
        if again[-1].norms.get(name, math.nan) != norm
    }
