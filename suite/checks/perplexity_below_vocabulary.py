"""Is every perplexity one that a language model can have?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.evidence import Evaluation
from suite.finding import Finding
from suite.trace import Trace

MOST_DIGITS = 20.0
"""Nats up to which a perplexity is written out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerplexityBelowVocabulary(Check):
    """No evaluation, before, during or after training, gives a perplexity above the number of tokens there are."""

    meaning: ClassVar[str] = (
        "the evaluation is broken (labels shifted twice, padding counted, a sum instead of a mean), the weights were "
        "never loaded, or the training diverged: guessing blindly would do better"
    )
    remedy: ClassVar[str] = "look at evaluation_oracle and base_matches_file first; if both are good, lower the rate"

    max_share: float = 1.0
    """Of ln V, the loss of a uniform guess."""
    max_share_random: float = 1.05
    """The same for random weights, which are a little worse than a uniform guess: by half of their logits' variance,
    0.2 nats for 0.02-initialised weights of width 900."""

    def judge(self, trace: Trace) -> Finding:
        vocabulary = trace.run["model"]["architecture"]["vocab_size"]
        limit = math.log(vocabulary) * (self.max_share if trace.pretrained else self.max_share_random)
        evaluations = trace.all(Evaluation)
        worst = max(evaluations, key=lambda seen: math.inf if math.isnan(seen.loss) else seen.loss)
        perplexity = f"{math.exp(worst.loss):,.2f}" if worst.loss < MOST_DIGITS else f"e^{worst.loss:.3g}"
        detail = f"largest of {len(evaluations)}: {worst.split} before step {worst.step}, perplexity {perplexity}"
        return self.found(
            worst.loss <= limit, f"{detail}, {vocabulary:,} tokens in the vocabulary", measured=worst.loss, limit=limit
        )
