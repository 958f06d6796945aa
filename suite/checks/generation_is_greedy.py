"""Does generation do what the model says?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.evidence import Generation
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationIsGreedy(Check):
    """Greedily generated tokens are the arg max of one plain forward over the same tokens, end token included."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"generate"})
    meaning: ClassVar[str] = (
        "wrong position ids, cache, padding side or mask in generation: the model is right and its answers are not"
    )
    remedy: ClassVar[str] = (
        "pad on the left for batched generation, pass the attention mask, compare with use_cache=False"
    )

    min_agreement: float = 0.9
    """Near ties may fall either way between the cached and the plain forward in 16 bit."""

    def judge(self, trace: Trace) -> Finding:
        worst = min(trace.all(Generation), key=lambda g: -1.0 if math.isnan(g.greedy_agreement) else g.greedy_agreement)
        detail = f"{worst.greedy_agreement:.0%} of the tokens of {worst.text[:60]!r} ({worst.when})"
        return self.found(
            worst.greedy_agreement >= self.min_agreement,
            detail,
            measured=worst.greedy_agreement,
            limit=self.min_agreement,
        )
