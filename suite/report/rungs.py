"""Memory and speed by strategy and rung of the ladder, from the attempts of a session's traces: `tunecheck rungs`.

Every figure is one that an attempt measured, on the device that its process really used. The allocator's peak on a GPU
and the resident memory of a process on a CPU are told apart, and never set against each other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from suite.core.errors import TraceError
from suite.core.evidence import TRAINING_PHASES, AttemptPurpose, MemoryVariant, Phase, Setup, Step
from suite.core.snapshot import changed
from suite.core.text import human_bytes
from suite.core.trace import Attempt, Trace, read

if TYPE_CHECKING:
    from rich.console import Console

PURPOSES = (AttemptPurpose.TRAIN, AttemptPurpose.FALLBACK_STEP)


@dataclass(frozen=True, slots=True, kw_only=True)
class RungRow:
    """One attempt to train."""

    run: str
    strategy: str
    rung: str
    """Of the ladder; "as asked" for none."""
    device: str
    """What the process really used; as asked for where it never got so far."""
    precision: str
    outcome: str
    steps: int
    peak_bytes: int | None
    """Of the training phases: what it needed, or for one that ran out of memory what it had got."""
    peak_kind: str
    """allocator (torch's own peak on the GPU), resident (the whole process), or empty."""
    step_seconds: float | None
    """Median, the first step left out; None with fewer than two."""
    relative_peak: float | None = None
    """Of the same run as asked, on the same device and by the same kind of figure."""
    relative_speed: float | None = None


def rows_of(traces: Iterable[Trace]) -> list[RungRow]:
    """A row for each attempt to train, whole or for a few steps, in the traces' order, related to the run as asked."""
    return [row for trace in traces for row in _related([_row(trace, attempt) for attempt in _trainings(trace)])]


def session_rows(folder: Path) -> list[RungRow]:
    """The rows of all traces of a session. Raises TraceError for a folder without any."""
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise TraceError(f"{folder}: holds no trace; name a session's folder, such as one under reports/runs")
    return rows_of(read(file) for file in files)


def print_rows(rows: list[RungRow], console: Console) -> None:
    """A table: which rung takes how much and how long."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for head, longest_word in (("run", ""), ("strategy", ""), ("rung", ""), ("device", ""), ("outcome", "finished")):
        table.add_column(head, overflow="fold", min_width=max(len(head), len(longest_word)))
    for head in ("memory", "relative", "step", "speed"):
        table.add_column(head, justify="right", overflow="fold", min_width=len(head))
    for row in rows:
        memory = "-" if row.peak_bytes is None else f"{human_bytes(row.peak_bytes)} {row.peak_kind}"
        step = "-" if row.step_seconds is None else f"{row.step_seconds:.3g} s"
        peak = "-" if row.relative_peak is None else f"{row.relative_peak:.0%}"
        speed = "-" if row.relative_speed is None else f"{row.relative_speed:.2f}x"
        where = f"{row.device} {row.precision}".strip()
        table.add_row(row.run, row.strategy, row.rung, where, row.outcome.replace("_", " "), memory, peak, step, speed)
    console.print(table)


def _trainings(trace: Trace) -> Iterator[Attempt]:
    return (attempt for attempt in trace.attempts if attempt.start.purpose in PURPOSES)


def _row(trace: Trace, attempt: Attempt) -> RungRow:
    run, setups, steps = changed(trace.header.run, attempt.start.changes), attempt.all(Setup), attempt.all(Step)
    every = attempt.all(Phase)  # one that ran out of memory while it loaded has no training phase
    phases = [phase for phase in every if phase.name in TRAINING_PHASES] or ([] if attempt.finished else every)
    allocated = [phase.peak_allocated_bytes for phase in phases if phase.peak_allocated_bytes is not None]
    resident = [phase.process_bytes for phase in phases if phase.process_bytes is not None]
    peak, kind = (allocated, "allocator") if allocated else (resident, "resident" if resident else "")
    seconds = [step.seconds for step in steps[1:]]
    few = f", {len(steps)} steps" if attempt.start.purpose == AttemptPurpose.FALLBACK_STEP else ""
    return RungRow(
        run=f"{run['tier']}/{run['id']}",
        strategy=run["strategy"],
        rung=attempt.start.configuration,
        device=setups[-1].device if setups else attempt.start.device,
        precision=setups[-1].precision if setups else "",
        outcome=attempt.outcome + few,
        steps=len(steps),
        peak_bytes=max(peak, default=None),
        peak_kind=kind,
        step_seconds=median(seconds) if seconds else None,
    )


def _related(rows: list[RungRow]) -> list[RungRow]:
    """The rows with their peak and speed over those of the last attempt as asked, where the two can be compared."""
    asked = next(
        (row for row in reversed(rows) if row.rung == MemoryVariant.AS_CONFIGURED and row.step_seconds is not None),
        None,
    )
    return [row if asked is None else _beside(row, asked) for row in rows]


def _beside(row: RungRow, asked: RungRow) -> RungRow:
    whole = row.outcome.startswith("finished") and asked.outcome.startswith("finished")
    comparable = whole and (row.device, row.peak_kind) == (asked.device, asked.peak_kind)
    peak = row.peak_bytes / asked.peak_bytes if comparable and row.peak_bytes and asked.peak_bytes else None
    speed = asked.step_seconds / row.step_seconds if asked.step_seconds and row.step_seconds else None
    return dataclasses.replace(row, relative_peak=peak, relative_speed=speed)
