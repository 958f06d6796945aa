"""Did the fallback begin anew?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.errors import MissingEvidence
from suite.evidence import Beginning
from suite.finding import Finding
from suite.judging.fallback import reference, why_no_reference
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackStartsFresh(Check):
    """After a fallback the training begins with the tensors and the random state of a run that began on the CPU."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"reference"})
    meaning: ClassVar[str] = (
        "half-trained weights, moments of the optimizer or an advanced random state were carried over from the attempt "
        "that ran out of memory"
    )
    remedy: ClassVar[str] = "load the model again from its file in a fresh process; do not move the old one with .to()"

    def judge(self, trace: Trace) -> Finding:
        if reason := why_no_reference(trace):
            return self.unjudged(reason, expected=True)
        begun, wanted = trace.one(Beginning), reference(trace).all(Beginning)
        if not wanted:
            raise MissingEvidence("the reference does not say how it began")
        problems = []
        if (begun.digest, begun.tensors) != (wanted[-1].digest, wanted[-1].tensors):
            problems.append(f"began as {begun.digest}, a run that begins on the CPU as {wanted[-1].digest}")
        if begun.optimizer_states != 0:
            problems.append(f"the optimizer held the state of {begun.optimizer_states} tensors at the start")
        detail = "; ".join(problems) or f"{begun.tensors} tensors and the random state are those of a fresh start"
        return self.found(not problems, detail, measured=begun.digest, limit=wanted[-1].digest)
