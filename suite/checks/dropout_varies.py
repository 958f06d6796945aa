"""Does dropout draw anew at each step?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.evidence import Window
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class DropoutVaries(Check):
    """With dropout, every step begins with another random state."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"dropout"})
    meaning: ClassVar[str] = (
        "a seed is set again inside the loop, or dropout draws nothing: the same elements are dropped at every step"
    )
    remedy: ClassVar[str] = "seed once, before the model is built; check that the model is in train mode"

    def judge(self, trace: Trace) -> Finding:
        states = [window.random_state for window in trace.all(Window)]
        repeated = len(states) - len(set(states))
        detail = f"{len(states)} steps, {repeated} of them with a random state that was there before"
        return self.found(repeated == 0, detail, measured=repeated, limit=0)
