"""What nearly no training does on purpose, and nothing proves to be a mistake: each is a question to whoever wrote it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from tunecheck.core.check import Check
from tunecheck.core.evidence import TrainingState
from tunecheck.core.finding import Finding
from tunecheck.core.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomnessVaries(Check):
    """Steps that draw random numbers begin with different random states, so that each drops something else."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"watched"})
    convention: ClassVar[str] = "a comparison of steps, or of models, under the same noise sets the seed again"
    meaning: ClassVar[str] = (
        "a seed is set in the loop, in the model or in a callback: dropout masks, noise and samples are the same in "
        "every step"
    )
    remedy: ClassVar[str] = "set the seed once, before the model is built; look for manual_seed and set_seed"

    max_alike: int = 2
    """Steps that begin with the same state."""

    def judge(self, trace: Trace) -> Finding:
        if "dropout" in trace.run.features:
            return self.unjudged("dropout_varies judges the random states of adapters that drop", expected=True)
        drawing = {seen.step: seen.random_state for seen in trace.all(TrainingState) if seen.random_state}
        states = Counter(drawing.values())
        if states.total() <= self.max_alike:
            return self.unjudged(f"{states.total()} steps drew random numbers", expected=True)
        alike = max(states.values())
        detail = f"{alike} of {states.total()} steps that draw random numbers begin with the same random state"
        return self.found(alike <= self.max_alike, detail, measured=alike, limit=self.max_alike)
