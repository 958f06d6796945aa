"""Memory and speed by strategy and step of the fallback chain, from a session's traces: `tunecheck fallback-table`.

Every figure was measured by an attempt, on the device that its process used. The allocator's peak on a GPU and the
resident memory of a process on a CPU are different figures, and are never compared with each other.
"""

import dataclasses
from collections.abc import Iterable
from statistics import median

from rich.console import Console

from tunecheck.core.evidence import TRAINING_PHASES, AttemptPurpose, MemoryVariant, Phase, Setup, Step
from tunecheck.core.frozen import Frozen
from tunecheck.core.snapshot import changed
from tunecheck.core.text import human_bytes
from tunecheck.core.trace import Attempt, Trace
from tunecheck.report.layout import PlainTable
from tunecheck.results import peak_of

PURPOSES = (AttemptPurpose.TRAIN, AttemptPurpose.FALLBACK_STEP)
"""Of attempts that train as configured or at a fallback step."""


class AttemptRow(Frozen):
    """One attempt to train."""

    run: str
    strategy: str
    fallback_step: str
    """Of the fallback chain; "as configured" for none."""
    device: str
    """Device that the process used; the requested one where it never got so far."""
    precision: str
    outcome: str
    steps: int
    peak_bytes: int | None
    """Of the training phases; for an attempt that ran out of memory, what it had allocated by then."""
    peak_kind: str
    """allocator (torch's own peak on the GPU), resident (the whole process), or empty."""
    step_seconds: float | None
    """Median, the first step left out; None with fewer than two."""
    relative_peak: float | None = None
    """Share of the peak of the same run as configured, on the same device and of the same kind."""
    relative_speed: float | None = None


def rows_of(traces: Iterable[Trace]) -> list[AttemptRow]:
    """Return a row for each training attempt, whole or for a few steps, relative to the run as configured."""
    rows = []
    for trace in traces:
        found = [_row(trace, attempt) for attempt in trace.attempts if attempt.start.purpose in PURPOSES]
        full = [row for row in found if row.fallback_step == MemoryVariant.AS_CONFIGURED and row.step_seconds]
        rows += [_relative(row, full[-1]) for row in found] if full else found
    return rows


def print_rows(rows: list[AttemptRow], console: Console) -> None:
    """Print a table: memory and time of each fallback step."""
    heads = ("run", "strategy", "fallback step", "device", "outcome", "memory", "relative", "step", "speed")
    table = PlainTable(*heads, right=slice(5, None))
    for column, head in zip(table.columns, heads, strict=True):
        column.min_width = max(len(head), len("finished") if head == "outcome" else 0)
    for row in rows:
        memory = f"{human_bytes(row.peak_bytes)} {row.peak_kind}".strip() or "-"
        step = "-" if row.step_seconds is None else f"{row.step_seconds:.3g} s"
        peak = "-" if row.relative_peak is None else f"{row.relative_peak:.0%}"
        speed = "-" if row.relative_speed is None else f"{row.relative_speed:.2f}x"
        where, outcome = f"{row.device} {row.precision}".strip(), row.outcome.replace("_", " ")
        table.add_row(row.run, row.strategy, row.fallback_step, where, outcome, memory, peak, step, speed)
    console.print(table)


def _row(trace: Trace, attempt: Attempt) -> AttemptRow:
    run, setups, steps = changed(trace.header.run, attempt.start.changes), attempt.all(Setup), attempt.all(Step)
    every = attempt.all(Phase)  # one that ran out of memory while it loaded has no training phase
    phases = [phase for phase in every if phase.name in TRAINING_PHASES] or ([] if attempt.finished else every)
    peak_bytes, peak_kind = peak_of(phases)
    seconds = [step.seconds for step in steps[1:]]
    few = f", {len(steps)} steps" if attempt.start.purpose == AttemptPurpose.FALLBACK_STEP else ""
    return AttemptRow(
        run=f"{run['tier']}/{run['id']}",
        strategy=run["strategy"],
        fallback_step=attempt.start.configuration,
        device=setups[-1].device if setups else attempt.start.device,
        precision=setups[-1].precision if setups else "",
        outcome=attempt.outcome + few,
        steps=len(steps),
        peak_bytes=peak_bytes,
        peak_kind=peak_kind,
        step_seconds=median(seconds) if seconds else None,
    )


def _relative(row: AttemptRow, configured: AttemptRow) -> AttemptRow:
    """Return the row with peak and speed relative to an attempt as configured, where they are comparable."""
    whole = row.outcome.startswith("finished") and configured.outcome.startswith("finished")
    comparable = whole and (row.device, row.peak_kind) == (configured.device, configured.peak_kind)
    peak = row.peak_bytes / configured.peak_bytes if comparable and row.peak_bytes and configured.peak_bytes else None
    speed = configured.step_seconds / row.step_seconds if configured.step_seconds and row.step_seconds else None
    return dataclasses.replace(row, relative_peak=peak, relative_speed=speed)
