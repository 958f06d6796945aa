"""Is the number of trained parameters the number of their elements?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.evidence import Census
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class ParametersCounted(Check):
    """The parameters that learn, and all there are, are as many as the configuration's shapes have by arithmetic."""

    meaning: ClassVar[str] = (
        "tensors were counted as parameters, an adapter has another rank than the configured one, layers are missing, "
        "or a tied matrix exists twice"
    )
    remedy: ClassVar[str] = (
        "count elements, not tensors; compare with `tunecheck strategies MODEL`, and the number of layers and the tied "
        "head with the model's configuration"
    )

    def judge(self, trace: Trace) -> Finding:
        censuses = trace.all(Census)
        wanted = censuses[0].expected_parameters
        if wanted is None:
            return self.unjudged("the shapes of this architecture are not known by arithmetic", expected=True)
        total = trace.run["model"]["parameters"] + (wanted if trace.run["lora"] else 0)
        problems = []
        for census in censuses:
            if census.trainable_parameters != wanted:
                counted = census.trainable_parameters == len(census.trainable)
                hint = ", which is the number of tensors" if counted else ""
                problems.append(
                    f"{census.when}: {census.trainable_parameters:,} trained{hint}, {wanted:,} by arithmetic"
                )
            if census.total_parameters != total:
                problems.append(f"{census.when}: {census.total_parameters:,} in all, {total:,} by arithmetic")
        last = censuses[-1]
        detail = "; ".join(problems) or f"{wanted:,} of {total:,} parameters in {len(last.trainable)} tensors"
        return self.found(not problems and wanted > 0, detail, measured=last.trainable_parameters, limit=wanted)
