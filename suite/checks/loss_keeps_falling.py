"""Does the loss keep falling to the end?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import ClassVar

from suite.check import Check
from suite.errors import MissingEvidence
from suite.evidence import Evaluation
from suite.finding import Finding
from suite.judging.trend import block_medians, running_minimum_kept, trend
from suite.trace import Trace

FEWEST_EVALUATIONS = 4
BLOCKS = 10
FEWEST_STEPS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class LossKeepsFalling(Check):
    """The loss ends below its start and does not rise again in between.

    Judged on the evaluations of the fixed probe batch, which have no sampling noise, where there are four or more;
    else on the training loss: medians of ten blocks of steps, and a trend through all of them.
    """

    applies_to: ClassVar[frozenset[str]] = frozenset({"long_run"})
    opt_in: ClassVar[bool] = True
    needs_pretrained: ClassVar[bool] = True
    meaning: ClassVar[str] = "training diverges late: a rate that is too high, a schedule that restarts, bad batches"
    remedy: ClassVar[str] = "compare with the learning rate's course; lower the rate or clip the gradients"

    max_rise: float = 0.02
    """Of an evaluation over the smallest before it, as a share."""
    max_late_rise: float = 0.15
    """Of the last block's median over the smallest one, as a share: falls that rise again pass in 8 % of simulated
    runs without it."""
    max_p: float = 1e-3
    """Chance at which a flat training loss may look like a falling one (Mann-Kendall)."""

    def judge(self, trace: Trace) -> Finding:
        probes = [evaluation for evaluation in trace.all(Evaluation) if evaluation.split == "probe"]
        return self._by_probes(probes) if len(probes) >= FEWEST_EVALUATIONS else self._by_blocks(trace)

    def _by_probes(self, probes: list[Evaluation]) -> Finding:
        losses = [evaluation.loss for evaluation in probes]
        falls = running_minimum_kept(losses, self.max_rise) and losses[-1] < losses[0]
        worst = max(_rises(losses), default=math.nan)
        course = " -> ".join(f"{evaluation.loss:.3f}" for evaluation in probes)
        return self.found(falls, f"probe batch {course}", measured=worst, limit=self.max_rise)

    def _by_blocks(self, trace: Trace) -> Finding:
        losses = [step.loss for step in trace.steps if step.applied]
        if len(losses) < FEWEST_STEPS:
            raise MissingEvidence(f"{len(losses)} steps, {FEWEST_STEPS} are needed")
        if not all(map(math.isfinite, losses)):
            return self.found(False, "a training loss is not finite", measured=math.nan, limit=self.max_late_rise)
        edges = [len(losses) * block // BLOCKS for block in range(BLOCKS + 1)]
        blocks = [median(losses[start:stop]) for start, stop in pairwise(edges)]
        falls = [-loss for loss in losses]
        falling = trend(*block_medians(range(len(falls)), falls), confidence=0.95).p_rising
        rise = blocks[-1] / min(blocks) - 1 if min(blocks) > 0 else math.nan
        passed = rise <= self.max_late_rise and blocks[-1] < blocks[0] and falling <= self.max_p
        course = " -> ".join(f"{block:.3f}" for block in blocks)
        detail = f"median training loss of ten blocks {course}, p of no fall {falling:.2g}"
        return self.found(passed, detail, measured=rise, limit=self.max_late_rise)


def _rises(losses: list[float]) -> list[float]:
    """How far each loss is above the smallest before it, as a share; negative where it is below."""
    return [loss / min(losses[:at]) - 1 for at, loss in enumerate(losses) if at and min(losses[:at]) > 0]
