"""Does dropout drop what it should, and draw anew at each step?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.evidence import AdapterDropout, Setup, Window
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class DropoutVaries(Check):
    """With dropout every step begins with another random state, and adapters drop the share asked for of their input.

    What they keep is divided by one less that share, each element of each token falls by itself, and the base is given
    all of them: this of plain LoRA in fp32, where it can be told from rounding, and where no weights are offloaded.
    """

    applies_to: ClassVar[frozenset[str]] = frozenset({"dropout"})
    meaning: ClassVar[str] = (
        "a seed is set again inside the loop, dropout draws nothing, with another probability, in another place or "
        "once for many, or what it keeps is not scaled"
    )
    remedy: ClassVar[str] = (
        "seed once, before the model is built; check that the model is in train mode; call the adapter's dropout alone "
        "on a tensor of ones"
    )

    max_deviations: float = 6.0
    """Of a count, in standard deviations of independent draws: once in 5e8 runs."""

    def judge(self, trace: Trace) -> Finding:
        states = [window.random_state for window in trace.all(Window)]
        repeated = len(states) - len(set(states))
        lent = trace.run["training"].get("offload") == "parameters"
        seen = not (lent or trace.run["lora"]["use_dora"]) and trace.one(Setup).precision == "fp32"
        dropped = trace.one(AdapterDropout) if seen else None
        if dropped is not None and not dropped.pairs:
            return self.unjudged("every adapter is so wide that no sum tells which element is missing", expected=True)
        problems = self._problems(trace.run["lora"]["dropout"], dropped) if dropped else []
        detail = f"{len(states)} steps, {repeated} of them with a random state that was there before"
        detail += "".join(f"; {problem}" for problem in problems)
        return self.found(repeated == 0 and not problems, detail, measured=repeated + len(problems), limit=0)

    def _problems(self, share: float, seen: AdapterDropout) -> list[str]:
        """What is wrong with what one forward pass dropped, where this share is asked for."""
        problems = []
        if seen.odd:
            problems.append(f"{seen.odd} of {seen.pairs} sums are not those of elements kept and scaled by 1/(1-p)")
        elif self._far(seen.dropped, 2 * seen.pairs, share):
            problems.append(f"{seen.dropped / (2 * seen.pairs):.1%} of the input dropped, {share:.0%} asked for")
        elif self._far(seen.alone, seen.pairs, 2 * share * (1 - share)):
            problems.append("elements do not fall one by one: dropout is not where the input goes into A")
        same = ((1 - share) ** 2 + share**2) ** 2
        for among, (count, agreeing) in (("tokens", seen.neighbours), ("adapters", seen.siblings)):
            if self._far(agreeing, count, same):
                told = f"in {agreeing / count:.0%} of the places two {among} lose the same"
                problems.append(f"{told}, {same:.0%} by chance")
        if not seen.base_untouched:
            problems.append("the base is given something else than the adapted linear")
        return problems

    def _far(self, count: int, draws: int, share: float) -> bool:
        """Whether a count of independent draws is too far from what their share promises."""
        return not abs(count - draws * share) <= self.max_deviations * math.sqrt(draws * share * (1 - share))
