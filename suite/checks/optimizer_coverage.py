"""Does the optimizer hold what is trained?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check, some
from suite.evidence import Census
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerCoverage(Check):
    """The optimizer holds every trainable tensor exactly once, by identity, and nothing else."""

    meaning: ClassVar[str] = (
        "the optimizer was built before the model was wrapped, loaded or resized: it steps tensors that nobody uses"
    )
    remedy: ClassVar[str] = "build the optimizer last, from the parameters of the model that is trained"

    def judge(self, trace: Trace) -> Finding:
        problems = []
        for census in trace.all(Census):
            held, wanted = Counter(census.optimized), set(census.trainable)
            if foreign := held.pop("?", 0):
                problems.append(f"{census.when}: {foreign} tensors in the optimizer are not the model's")
            if missing := sorted(wanted - held.keys()):
                problems.append(
                    f"{census.when}: {len(missing)} trainable tensors are not in the optimizer: {some(missing)}"
                )
            if extra := sorted(held.keys() - wanted):
                problems.append(f"{census.when}: {len(extra)} frozen tensors are in the optimizer: {some(extra)}")
            if twice := sorted(name for name, times in held.items() if times > 1):
                problems.append(f"{census.when}: held more than once: {some(twice)}")
            decay = str(trace.run["training"]["weight_decay"])
            if wrong := sorted(census.weight_decays.keys() - {decay}):
                problems.append(f"{census.when}: weight decay {some(wrong)}, configured {decay}")
            training = trace.run["training"]
            adam = " ".join(str(training[f"adam_{key}"]) for key in ("beta1", "beta2", "epsilon"))
            if wrong := sorted(census.adam_settings.keys() - {adam}):
                problems.append(f"{census.when}: betas and epsilon {some(wrong)}, configured {adam}")
        held_tensors = len(trace.one(Census).optimized)
        detail = "; ".join(problems) or f"all {held_tensors} trainable tensors held once"
        return self.found(not problems and held_tensors > 0, detail)
