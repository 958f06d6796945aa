"""Does generation do what the model says?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from suite.check import NumericCheck
from suite.evidence import Generation
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationIsGreedy(NumericCheck):
    """Greedily generated tokens, and the logits behind them, are those of one plain forward over the same tokens.

    Each is the largest of the scores it was chosen by, the end token ends the answer, and the prompt is tokenised as
    in the rows that are trained on.
    """

    applies_to: ClassVar[frozenset[str]] = frozenset({"generate"})
    meaning: ClassVar[str] = (
        "wrong position ids, cache, padding side or mask in generation, or a penalty left in its settings: the model "
        "is right and its answers are not"
    )
    remedy: ClassVar[str] = (
        "pad on the left for batched generation, pass the attention mask, compare with use_cache=False"
    )

    min_agreement: float = 0.9
    """Near ties may fall either way between the cached and the plain forward in 16 bit."""

    max_error_fp32: float = 1e-3
    """Of the logits: a cache and a plain forward multiply in other orders."""
    max_error_16bit: float = 0.1

    def judge(self, trace: Trace) -> Finding:
        limit, answers = self.limit(trace), trace.all(Generation)
        worst = min(answers, key=lambda g: -1.0 if math.isnan(g.greedy_agreement) else g.greedy_agreement)
        farthest = max(answers, key=lambda g: math.inf if math.isnan(g.logit_difference) else g.logit_difference)
        detail = f"{worst.greedy_agreement:.0%} of the tokens of {worst.text[:60]!r} ({worst.when}); "
        detail += f"logits off by {farthest.logit_difference:.2g} of the largest"
        problems = _problems(answers)
        detail += "".join(f"; {problem}" for problem in problems)
        passed = worst.greedy_agreement >= self.min_agreement and farthest.logit_difference <= limit and not problems
        return self.found(passed, detail, measured=farthest.logit_difference, limit=limit)


def _problems(answers: list[Generation]) -> list[str]:
    """What generate is given or does with right scores: another prompt, another token, going on after the end token."""
    problems = []
    if other := [answer for answer in answers if answer.prompt_as_trained is False]:
        problems.append(f"the tokens of the prompt {other[0].prompt[-40:]!r} are not those of its row in training")
    if tokens := sum(answer.not_largest or 0 for answer in answers):
        problems.append(f"{tokens} tokens are not the largest of the scores that they were chosen by")
    if any(answer.stops is False for answer in answers):
        problems.append("generation goes on after the end token")
    return problems
