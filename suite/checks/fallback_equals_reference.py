"""Does a fallback to the CPU give the right result?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.evidence import Step
from suite.finding import Finding
from suite.judging.fallback import reference, why_no_reference
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackEqualsReference(Check):
    """After a fallback to the CPU every loss is, to the last bit, that of a run that began there."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"reference"})
    meaning: ClassVar[str] = (
        "something of the attempt on the GPU lives on: weights, the optimizer's state, the place in the data, or a "
        "setting meant for the GPU"
    )
    remedy: ClassVar[str] = "compare the first step that differs: step 0 means the start, a later one optimizer or data"

    def judge(self, trace: Trace) -> Finding:
        if reason := why_no_reference(trace):
            return self.unjudged(reason, expected=True)
        wanted = {step.step: step.loss for step in reference(trace).all(Step)}
        got = {step.step: step.loss for step in trace.steps}
        # a NaN differs from everything, itself included
        different = [step for step in sorted(wanted | got) if got.get(step) != wanted.get(step)]
        detail = f"{len(got)} losses equal to the last bit"
        if different or not got:
            first = different[0] if different else 0
            detail = f"{len(different)} of {len(wanted)} losses differ, first step {first}: "
            detail += f"{got.get(first)!r} and {wanted.get(first)!r}"
        return self.found(bool(got) and not different, detail, measured=len(different), limit=0)
