"""Were all steps taken?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.errors import MissingEvidence
from suite.evidence import Update
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsApplied(Check):
    """The run took every step that was asked for, and nearly all were applied."""

    meaning: ClassVar[str] = (
        "the run ended early, or the gradient scaler skips steps (fp16 overflow) while everything else goes on"
    )
    remedy: ClassVar[str] = "use bf16; look at the gradient norms of the skipped steps"

    max_skipped: int = 3
    """fp16's scaler starts high and may skip its first one to three steps."""

    def judge(self, trace: Trace) -> Finding:
        wanted, steps = trace.run["training"]["max_steps"], trace.steps
        skipped = sum(not step.applied for step in steps)
        unmoved = [u.step for u in trace.all(Update) if not u.moved and not u.expected_learning_rate <= 0]
        unmoved = [step for step in unmoved if step not in {s.step for s in steps if not s.applied}]
        detail = f"{len(steps)} of {wanted} steps, {skipped} skipped by the scaler"
        detail += f"; nothing moved in steps {unmoved[:5]} though they count as applied" if unmoved else ""
        if trace.main.end is None:
            raise MissingEvidence(f"the trace breaks off: {detail}")
        in_order = [step.step for step in steps] == list(range(wanted))
        passed = in_order and skipped <= self.max_skipped and not unmoved
        return self.found(passed, detail, measured=len(steps) - skipped, limit=wanted - self.max_skipped)
