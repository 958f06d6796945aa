"""Is what the model says language, whichever it is?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.errors import MissingEvidence
from suite.evidence import Generation
from suite.finding import Finding
from suite.trace import Trace

LONG_ENOUGH = 8
"""Tokens from which on repetition says something: a short answer may be one word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextIsLanguage(Check):
    """The model is sure of its own greedy continuations, they are no single token, and their characters are readable.

    No dictionary is asked: of noise, no next token is likely.
    """

    applies_to: ClassVar[frozenset[str]] = frozenset({"generate"})
    needs_pretrained: ClassVar[bool] = True
    meaning: ClassVar[str] = (
        "the model speaks noise: the weights were never loaded, the tokenizer is another model's, or the training "
        "destroyed what the model knew"
    )
    remedy: ClassVar[str] = "read the texts in report.html; look at base_matches_file and first_loss_below_uniform"

    max_share: float = 0.4
    """Of ln V, for the mean negative log-probability of the generated tokens: SmolLM2-135M has 0.05 to 0.12, its
    architecture with random weights 0.9."""
    max_repeated: float = 0.6
    """Of the tokens, for the most frequent one."""
    min_readable: float = 0.95
    """Of the characters."""

    def judge(self, trace: Trace) -> Finding:
        texts = trace.all(Generation)
        if any(text.readable_share is None or text.tokens is None for text in texts):
            raise MissingEvidence("this trace is older than this check: it does not tell how readable its texts are")
        uniform = math.log(trace.run["model"]["architecture"]["vocab_size"])
        limit = self.max_share * uniform
        worst = max(texts, key=lambda text: math.inf if math.isnan(text.mean_logprob) else -text.mean_logprob)
        problems = [
            f"{problem} ({text.when}: {text.text[:60]!r})" for text in texts for problem in self._of(text, limit)
        ]
        detail = "; ".join(problems) or f"{len(texts)} texts; the least sure ({worst.when}): {worst.text[:60]!r}"
        return self.found(not problems, detail, measured=-worst.mean_logprob, limit=limit)

    def _of(self, text: Generation, limit: float) -> list[str]:
        """What is wrong with this text."""
        problems = []
        if not -text.mean_logprob <= limit:
            problems.append(f"{-text.mean_logprob:.2f} nats a token of its own choice")
        repeated = text.most_frequent_share or 0.0
        if (text.tokens or 0) >= LONG_ENOUGH and not repeated <= self.max_repeated:
            problems.append(f"{repeated:.0%} of the tokens are the same one")
        if not (text.readable_share or 0.0) >= self.min_readable:
            problems.append(f"only {text.readable_share or 0.0:.0%} of the characters are readable")
        return problems
