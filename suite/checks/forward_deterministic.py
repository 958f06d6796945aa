"""Is the forward pass the same twice?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.evidence import ForwardPaths
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardDeterministic(Check):
    """Two equal forwards give the same logits to the last bit."""

    meaning: ClassVar[str] = (
        "noise in the forward pass: a layer left in a random mode, an uninitialised buffer, or damaged hardware"
    )
    remedy: ClassVar[str] = (
        "look for dropout with rate 0 in the configuration but not in the model; run the card's diagnostics"
    )

    def judge(self, trace: Trace) -> Finding:
        difference = trace.one(ForwardPaths).repeat_difference
        return self.found(
            difference <= 0.0, "largest logit difference of two equal forwards", measured=difference, limit=0.0
        )
