"""Was every lack of memory told, and answered as the run says?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from suite.check import Check
from suite.errors import MissingEvidence
from suite.evidence import Phase
from suite.finding import Finding
from suite.judging.fallback import trainings
from suite.trace import Attempt, Trace


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
    """torch counts every out-of-memory error that it raised: an attempt that finished may have had none."""
    for attempt in trace.attempts:
        for phase in attempt.all(Phase) if attempt.finished else ():
            count = phase.out_of_memory_count
            if count is not None and not count <= 0:
                yield f"{attempt.start.purpose} ran out of memory {count} times in {phase.name!r} and went on"
