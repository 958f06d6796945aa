"""Do the trained adapters change the output?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.evidence import AdapterEffect
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptersApplied(Check):
    """After training, logits with adapters on and off differ."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"adapters"})
    meaning: ClassVar[str] = "the adapters were trained but are not applied in the forward pass, or were never trained"
    remedy: ClassVar[str] = "check that the wrapped model is called and that no adapter is disabled or merged away"

    min_difference: float = 0.0
    """To be exceeded. An adapter that was never trained or is switched off adds exact zeros, so anything will do: how
    much it is depends on rate and steps (1.4e-2 after ten steps of SmolLM2-135M at 2e-4)."""

    def judge(self, trace: Trace) -> Finding:
        difference = trace.one(AdapterEffect).difference
        detail = "largest logit difference, adapters on and off, over the largest logit"
        return self.found(difference > self.min_difference, detail, measured=difference, limit=self.min_difference)
