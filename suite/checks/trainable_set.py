"""Is exactly the right set of tensors trainable?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check, some
from suite.evidence import Census
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainableSet(Check):
    """The tensors that require a gradient are those enumerated from the configuration, at every census."""

    meaning: ClassVar[str] = (
        "adapters are missing in some layers, frozen by a helper, or the base was unfrozen; often a substring "
        "match on layer names"
    )
    remedy: ClassVar[str] = (
        "compare target_modules and layer numbers with the names below; look for requires_grad_ and set_adapter calls"
    )

    def judge(self, trace: Trace) -> Finding:
        problems = []
        for census in trace.all(Census):
            wanted, got = set(census.expected_trainable), set(census.trainable)
            if missing := sorted(wanted - got):
                problems.append(f"{census.when}: {len(missing)} of {len(wanted)} not trainable: {some(missing)}")
            if extra := sorted(got - wanted):
                problems.append(f"{census.when}: {len(extra)} trainable that should not be: {some(extra)}")
        census = trace.one(Census)
        share = census.trainable_parameters / max(1, census.total_parameters)
        numbers = f"{census.trainable_parameters:,} of {census.total_parameters:,} parameters trainable ({share:.2%})"
        return self.found(
            not problems and bool(census.expected_trainable),
            "; ".join([*problems, numbers]),
            measured=len(census.trainable),
            limit=len(census.expected_trainable),
        )
