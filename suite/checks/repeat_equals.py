"""Does a fresh process give the same losses?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.errors import MissingEvidence
from suite.evidence import Step
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatEquals(Check):
    """The same run in a second fresh process has the same losses to the last bit."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"repeat"})
    meaning: ClassVar[str] = (
        "something random is not seeded, or the arithmetic is not deterministic: no two results can then be compared"
    )
    remedy: ClassVar[str] = (
        "seed everything; look for atomics in kernels (torch.use_deterministic_algorithms), or for hardware faults"
    )

    def judge(self, trace: Trace) -> Finding:
        first = {step.step: step.loss for step in trace.steps}
        again = trace.last("repeat")
        if not again.finished:
            raise MissingEvidence(f"the repeated run did not finish: {again.end.detail if again.end else 'killed'}")
        pairs = [(step.step, first.get(step.step), step.loss) for step in again.all(Step)]
        if len(pairs) < trace.run["probes"]["repeat_steps"]:
            raise MissingEvidence(f"the repeated run took {len(pairs)} steps")
        different = [(step, a, b) for step, a, b in pairs if a != b]
        detail = f"{len(pairs)} steps equal to the last bit"
        if different:
            step, a, b = different[0]
            detail = f"{len(different)} of {len(pairs)} steps differ, first step {step}: {a!r} and {b!r}"
        return self.found(not different, detail, measured=len(different), limit=0)
