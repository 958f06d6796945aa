"""Does the learning rate follow its schedule?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.finding import Finding
from suite.judging.schedule import learning_rate
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRateTrace(Check):
    """The rate of every applied step equals the schedule's closed form."""

    meaning: ClassVar[str] = (
        "the scheduler steps once a micro-batch or once a process, on skipped steps too, starts over after a "
        "resume, or is not stepped"
    )
    remedy: ClassVar[str] = "step the scheduler once after each applied optimizer step"

    max_error: float = 1e-6
    """Difference over the peak rate; both are float64 arithmetic."""

    def judge(self, trace: Trace) -> Finding:
        training, applied, worst = trace.run["training"], 0, (0.0, "all steps on the schedule")
        for step in trace.steps:
            wanted = learning_rate(
                applied,
                peak=training["learning_rate"],
                schedule=training["lr_scheduler"],
                warmup_ratio=training["warmup_ratio"],
                max_steps=training["max_steps"],
            )
            error = abs(step.learning_rate - wanted) / training["learning_rate"]
            if not (error <= worst[0] or math.isnan(worst[0])):
                worst = (error, f"step {step.step}: rate {step.learning_rate:.4g}, the schedule says {wanted:.4g}")
            applied += step.applied
        return self.found(worst[0] <= self.max_error, worst[1], measured=worst[0], limit=self.max_error)
