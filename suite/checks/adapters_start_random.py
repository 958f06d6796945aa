"""Does every adapter start from numbers of its own, as large as LoRA's?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check, some
from suite.evidence import AdapterStart
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptersStartRandom(Check):
    """Every A is drawn anew under the run's seed, uniform within 1 / sqrt(inputs) and of full rank; B = 0 hides it."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"adapters"})
    meaning: ClassVar[str] = (
        "the seed is set again for every adapter or part of one, or never, or A is initialised at another scale: the "
        "first steps are then equal, of a smaller rank, those of any other seed, too long or too short"
    )
    remedy: ClassVar[str] = "leave initialisation to peft, and seed once, before the adapters are made"

    max_ratio: float = 1.5
    """Of A's spread to what it should be, either way: within 1.07 in 204 healthy runs, at rank 1 and 128 inputs too."""

    def judge(self, trace: Trace) -> Finding:
        seen = trace.one(AdapterStart)
        smallest, largest = seen.a_sizes["smallest"], seen.a_sizes["largest"]
        problems = []
        if not (smallest * self.max_ratio >= 1 and largest <= self.max_ratio):
            problems.append("A is not drawn at its size")
        if seen.seed != (wanted := trace.run["training"]["seed"]):
            problems.append(f"torch was seeded with {seen.seed}, configured {wanted}")
        if seen.a_repeated:
            problems.append(f"{len(seen.a_repeated)} A repeat another one: {some(seen.a_repeated)}")
        if seen.a_dependent:
            problems.append(f"{len(seen.a_dependent)} A of less than full rank: {some(seen.a_dependent)}")
        detail = f"A is {smallest:.3g} to {largest:.3g} times as large as it should be"
        detail = "; ".join([*problems, detail])
        return self.found(
            not problems, detail, measured=max(largest, 1 / smallest) if smallest else largest, limit=self.max_ratio
        )
