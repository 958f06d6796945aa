"""Checks that compare the steps of any training with each other, whatever its rows and its loss are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tunecheck.core.check import Check
from tunecheck.core.evidence import StepInputs
from tunecheck.core.finding import Finding
from tunecheck.core.premises import Premise
from tunecheck.core.trace import Trace

FEW = 3
"""Steps that say nothing yet: two may be equal by chance, in a data set of a few batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchesChange(Check):
    """A model is not given the same batch in every step. Rows of language models are compared by rows_come_once."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"unknown_rows"})
    premises: ClassVar[frozenset[Premise]] = frozenset()
    convention: ClassVar[str] = "one batch is overfitted on purpose, or the whole data set is one batch"
    meaning: ClassVar[str] = "the loader's iterator is made again in each step, or the batch is read before the loop"
    remedy: ClassVar[str] = "make the iterator once an epoch, and take the next batch in each step"

    def judge(self, trace: Trace) -> Finding:
        batches = [digest for seen in trace.all(StepInputs) for digest in seen.digests]
        steps = len(trace.all(StepInputs))
        if steps < FEW:
            return self.unjudged(f"{steps} steps, fewer than {FEW}", expected=True)
        different = len(set(batches))
        detail = f"{different} different of {len(batches)} micro-batches in {steps} steps"
        return self.found(different > 1, detail, measured=different, limit="above 1", compared=len(batches))


@dataclass(frozen=True, slots=True, kw_only=True)
class DropoutDraws(Check):
    """A model with dropout layers is trained in train mode, and its steps draw different random numbers."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"watched"})
    premises: ClassVar[frozenset[Premise]] = frozenset()
    convention: ClassVar[str] = "some fine-tune without dropout, or with the same random numbers in each step"
    meaning: ClassVar[str] = (
        "model.train() is missing after loading or after an evaluation, or a seed is set inside the loop, so that "
        "each step drops the same elements"
    )
    remedy: ClassVar[str] = "call model.train() before the loop and after each evaluation; seed once, before the loop"

    def judge(self, trace: Trace) -> Finding:
        steps = trace.all(StepInputs)
        most = max(seen.dropouts_on + seen.dropouts_off for seen in steps)
        if not most:
            return self.unjudged("the model has no dropout layer with a share above 0", expected=True)
        off = [seen.step for seen in steps if not seen.training and not seen.dropouts_on]
        drawing = [seen.random_state for seen in steps if seen.dropouts_on]
        problems = []
        if off:
            problems.append(
                f"in {len(off)} of {len(steps)} steps the model is in eval mode, with {most} dropout layers"
            )
        if len(drawing) >= FEW and len(set(drawing)) == 1:
            problems.append(f"{len(drawing)} steps begin with the same random state")
        detail = (
            "; ".join(problems) or f"{most} dropout layers, {len(set(drawing))} random states in {len(steps)} steps"
        )
        return self.found(not problems, detail, measured=len(problems), limit=0)
