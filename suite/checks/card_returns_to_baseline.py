"""Is the card as free after the run as it was before?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.errors import MissingEvidence
from suite.evidence import Telemetry
from suite.finding import Finding
from suite.judging.telemetry import MIB, telemetry
from suite.trace import Attempt, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class CardReturnsToBaseline(Check):
    """After each attempt, also one that ran out of memory, the driver shows the card's memory free as before it."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"fallback"})
    subject: ClassVar[str] = "memory"
    meaning: ClassVar[str] = "a process of the attempt still lives and holds the card: the next attempt has less room"
    remedy: ClassVar[str] = "look at nvidia-smi for the process; end what the training started (data workers, servers)"

    max_growth_mib: float = 64
    """By the driver's own count of the whole card. Not yet measured on a GPU: a context takes several times as much."""

    def judge(self, trace: Trace) -> Finding:
        watched = [(attempt, seen) for attempt in trace.attempts if (seen := telemetry(attempt)) is not None]
        if not watched:
            return self.unjudged("no attempt was on a GPU", expected=True)
        grown = [(_growth_bytes(attempt, seen) / MIB, attempt) for attempt, seen in watched]
        worst, attempt = max(grown, key=lambda pair: pair[0] if pair[0] == pair[0] else float("inf"))
        detail = f"at most {worst:,.0f} MiB more in use after an attempt than before it"
        detail += f" ({attempt.start.purpose} {attempt.start.rung or 'as asked'})" if worst > 0 else ""
        return self.found(worst <= self.max_growth_mib, detail, measured=worst, limit=self.max_growth_mib)


def _growth_bytes(attempt: Attempt, seen: Telemetry) -> float:
    """Memory of the card in use after the attempt less that before it, newcomers' own share left out."""
    if seen.used_bytes_before is None or seen.used_bytes_after is None:
        raise MissingEvidence(f"the card's memory was not read before and after: {seen.problem or 'untold'}")
    known = {process.pid for process in seen.processes_before}
    newcomers = [process for process in seen.processes_after if process.pid not in known]
    if any(process.pid == seen.process_id for process in seen.processes_after):
        raise MissingEvidence("the training process still lives, as with --in-process: its memory is not back yet")
    if any(process.used_bytes is None for process in newcomers):
        raise MissingEvidence("other processes came to the card during the attempt, and it does not say what they hold")
    theirs = sum(process.used_bytes or 0 for process in newcomers)
    return seen.used_bytes_after - seen.used_bytes_before - theirs
