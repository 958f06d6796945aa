"""Does the number of live tensors stay the same?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.errors import MissingEvidence
from suite.evidence import LiveTensors
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTensorsFlat(Check):
    """At the same point of each sampled step the same number of tensors is alive, and of hooks in place."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"several_steps"})
    subject: ClassVar[str] = "memory"
    meaning: ClassVar[str] = (
        "losses, logits or outputs are collected with their graph, evaluation keeps what it computed, or hooks are "
        "registered again and again"
    )
    remedy: ClassVar[str] = "detach what is kept (loss.detach(), or float(loss) at the end of a window)"

    max_growth: float = 0.5
    """Tensors a step; a healthy run has 0, a kept loss at least 1."""

    def judge(self, trace: Trace) -> Finding:
        samples = trace.all(LiveTensors)
        if len(samples) < 2:
            raise MissingEvidence("fewer than two samples: the run is too short")
        steps = samples[-1].step - samples[0].step
        growth = (samples[-1].tensors - samples[0].tensors) / steps
        first, last = samples[0], samples[-1]
        detail = f"{first.tensors} tensors after step {first.step}, {last.tensors} after step {last.step}"
        hooks = last.hooks - first.hooks
        if hooks > 0:
            detail += f"; {hooks} hooks more on the model"
        return self.found(growth <= self.max_growth and hooks <= 0, detail, measured=growth, limit=self.max_growth)
