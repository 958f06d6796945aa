"""Does it generalise?"""

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
class HeldoutImproves(Check):
    """The loss on held-out rows, about other facts, ends below its start by at least this share."""

    opt_in: ClassVar[bool] = True
    needs_pretrained: ClassVar[bool] = True
    meaning: ClassVar[str] = (
        "the model memorises its training rows, or evaluation is wrong: held-out perplexity rises while the "
        "training loss falls"
    )
    remedy: ClassVar[str] = "fewer epochs, a smaller rate or rank; compare with evaluation_oracle"

    min_fall: float = 0.0
    """Smallest fall that counts, as a share of the start."""

    def judge(self, trace: Trace) -> Finding:
        heldout = [e for e in trace.all(Evaluation) if e.split == "heldout"]
        if len(heldout) < 2 or (heldout[0].step, heldout[-1].step) != (0, trace.run["training"]["max_steps"]):
            raise MissingEvidence("the held-out split was not evaluated at start and end")
        fall = (
            1 - heldout[-1].loss / heldout[0].loss if heldout[0].loss and math.isfinite(heldout[0].loss) else -math.inf
        )
        first, last = (math.exp(min(e.loss, 700.0)) for e in (heldout[0], heldout[-1]))
        detail = f"held-out perplexity {first:.2f} -> {last:.2f} ({heldout[0].loss:.4f} -> {heldout[-1].loss:.4f} nats)"
        return self.found(fall >= self.min_fall, detail, measured=fall, limit=self.min_fall)
