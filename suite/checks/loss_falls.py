"""Does the model learn?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.errors import MissingEvidence
from suite.evidence import Evaluation
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class LossFalls(Check):
    """The loss on a fixed probe batch in eval mode falls by at least this share from start to end."""

    opt_in: ClassVar[bool] = True
    needs_pretrained: ClassVar[bool] = True
    meaning: ClassVar[str] = "the adapters do not learn: no gradient, a rate that is too small, wrong labels"
    remedy: ClassVar[str] = (
        "look at the other failed checks first; if there are none, raise the learning rate or the number of steps"
    )

    min_fall: float
    """Smallest fall that counts, as a share of the start."""

    def judge(self, trace: Trace) -> Finding:
        probe = [e for e in trace.all(Evaluation) if e.split == "probe"]
        if len(probe) < 2 or (probe[0].step, probe[-1].step) != (0, trace.run["training"]["max_steps"]):
            raise MissingEvidence("the probe batch was not evaluated at start and end")
        fall = 1 - probe[-1].loss / probe[0].loss if probe[0].loss and math.isfinite(probe[0].loss) else -math.inf
        detail = f"probe batch {probe[0].loss:.4f} -> {probe[-1].loss:.4f} in {probe[-1].step} steps"
        return self.found(fall >= self.min_fall, detail, measured=fall, limit=self.min_fall)
