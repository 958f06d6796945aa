"""Checks of fallback."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from suite.checks.attempts import reference, trainings, why_no_reference
from suite.core.check import Check
from suite.core.errors import MissingEvidence
from suite.core.evidence import Beginning, Phase, ProbeFailed, Step
from suite.core.finding import Finding
from suite.core.trace import Attempt, Trace

ALLOCATOR_ERROR = "OutOfMemoryError:"
"""How a probe's failure begins when torch's allocator raised it, the only kind of which torch keeps a count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackInOrder(Check):
    """Only a lack of memory led to another attempt, each one a rung lower, its reason told, and none was hidden."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"fallback"})
    meaning: ClassVar[str] = (
        "an out-of-memory error was caught and swallowed, a fallback hides another failure, or it took a rung that the "
        "run does not name"
    )
    remedy: ClassVar[str] = "look for `except` around the training step; read the reasons of the attempts in the report"

    def judge(self, trace: Trace) -> Finding:
        tried = trainings(trace)
        if not tried or not tried[-1].finished:
            raise MissingEvidence("the training did not finish, so its ladder is not at its end")
        problems = [*_wrong_rungs(trace, tried), *_untold(tried), *_swallowed(trace)]
        way = " -> ".join(f"{a.start.rung or 'as asked'} on {a.start.device}" for a in tried)
        detail = "; ".join(problems) or (f"out of memory, so {way}" if len(tried) > 1 else f"{way}, nothing ran out")
        return self.found(not problems, detail, measured=len(problems), limit=0)


def _wrong_rungs(trace: Trace, tried: list[Attempt]) -> Iterator[str]:
    asked = trace.header.run["fallback"]
    known = [""] + ([] if asked == "none" else [asked] if isinstance(asked, str) else list(asked))
    taken = [attempt.start.rung for attempt in tried]
    if taken != [rung for rung in known if rung in taken]:
        yield f"rungs {', '.join(rung or 'as asked' for rung in taken)} of a run with fallback {asked}"


def _untold(tried: list[Attempt]) -> Iterator[str]:
    for before, after in pairwise(tried):
        outcome = before.end.outcome if before.end else "cut off"
        if before.end is None or outcome != "out_of_memory":
            yield f"tried again on {after.start.device} though the attempt before ended as {outcome}"
        elif before.end.detail not in after.start.reason:
            yield f"the attempt on {after.start.device} does not say what made it necessary"


def _swallowed(trace: Trace) -> Iterator[str]:
    """Yield the out-of-memory errors that torch counted in a finished attempt, less those recorded for a probe."""
    for attempt in trace.attempts:
        failures = attempt.all(ProbeFailed) if attempt.finished else []
        recorded = sum(failure.error.startswith(ALLOCATOR_ERROR) for failure in failures)
        for phase in attempt.all(Phase) if attempt.finished else ():
            count = phase.out_of_memory_count
            if count is None:
                continue
            explained = min(recorded, count) if count > 0 else 0
            recorded, count = recorded - explained, count - explained
            if not count <= 0:
                yield f"{attempt.start.purpose} ran out of memory {count} times in {phase.name!r} and went on"


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackStartsFresh(Check):
    """After a fallback the training begins with the tensors and the random state of a run that began on the CPU."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"reference"})
    meaning: ClassVar[str] = (
        "half-trained weights, moments of the optimizer or an advanced random state were carried over from the attempt "
        "that ran out of memory"
    )
    remedy: ClassVar[str] = "load the model again from its file in a fresh process; do not move the old one with .to()"

    def judge(self, trace: Trace) -> Finding:
        if reason := why_no_reference(trace):
            return self.unjudged(reason, expected=True)
        begun, wanted = trace.one(Beginning), reference(trace).all(Beginning)
        if not wanted:
            raise MissingEvidence("the reference does not say how it began")
        problems = []
        if (begun.digest, begun.tensors) != (wanted[-1].digest, wanted[-1].tensors):
            problems.append(f"began as {begun.digest}, a run that begins on the CPU as {wanted[-1].digest}")
        if begun.optimizer_states != 0:
            problems.append(f"the optimizer held the state of {begun.optimizer_states} tensors at the start")
        detail = "; ".join(problems) or f"{begun.tensors} tensors and the random state are those of a fresh start"
        return self.found(not problems, detail, measured=begun.digest, limit=wanted[-1].digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackEqualsReference(Check):
    """After a fallback to the CPU every loss is, to the last bit, that of a run that began there."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"reference"})
    meaning: ClassVar[str] = (
        "something of the attempt on the GPU lives on: weights, the optimizer's state, the place in the data, or a "
        "setting meant for the GPU"
    )
    remedy: ClassVar[str] = "compare the first step that differs: step 0 means the start, a later one optimizer or data"

    def judge(self, trace: Trace) -> Finding:
        if reason := why_no_reference(trace):
            return self.unjudged(reason, expected=True)
        wanted = {step.step: step.loss for step in reference(trace).all(Step)}
        got = {step.step: step.loss for step in trace.steps}
        # a NaN differs from everything, itself included
        different = [step for step in sorted(wanted | got) if got.get(step) != wanted.get(step)]
        detail = f"{len(got)} losses equal to the last bit"
        if different or not got:
            first = different[0] if different else 0
            detail = f"{len(different)} of {len(wanted)} losses differ, first step {first}: "
            detail += f"{got.get(first)!r} and {wanted.get(first)!r}"
        return self.found(bool(got) and not different, detail, measured=len(different), limit=0)
