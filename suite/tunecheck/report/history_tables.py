"""History, comparisons and baselines as tables of a terminal, and what each step of a fallback chain took."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.text import Text

from tunecheck.core.check import grouped
from tunecheck.core.evidence import TRAINING_PHASES, AttemptPurpose, MemoryVariant, Phase, Setup, Step
from tunecheck.core.frozen import Frozen
from tunecheck.core.snapshot import changed
from tunecheck.core.text import counted, human_bytes, one_line
from tunecheck.core.trace import Attempt, Trace
from tunecheck.history.baseline import AcceptedBaseline
from tunecheck.history.compare import Comparison
from tunecheck.history.remember import compare_figures
from tunecheck.history.store import HistoryEntry
from tunecheck.report.layout import PlainTable
from tunecheck.report.view import relative_change
from tunecheck.results import peak_of
from tunecheck.results.baseline import FEWEST_SESSIONS, FIGURES, FigureComparison, baseline_of, limit

MOST_ROWS = 40
"""Sessions in one table; --json has all."""
_STYLES = {"worse": "bold red", "suspect": "yellow", "better": "green", "no baseline": "yellow"}


def print_entries(run: str, entries: Sequence[HistoryEntry], console: Console) -> None:
    """Print a table for each key of this run, the newest key last: its sessions below each other, and the baseline."""
    for key in dict.fromkeys(entry.key for entry in entries):
        of_key = [entry for entry in entries if entry.key == key]
        passed = [entry for entry in of_key if entry.outcome == "pass"]
        enough = len(passed) >= FEWEST_SESSIONS
        status = "" if enough else f", no baseline: {len(passed)} of {FEWEST_SESSIONS} passed sessions"
        sessions = counted(len(of_key), "session")
        _line(console, f"{run} as {key.fingerprint} on {key.device}, {key.majors}: {sessions}{status}")
        names = [name for name in FIGURES if any(name in entry.figures for entry in of_key)]
        titles = [FIGURES[name].title for name in names]
        table = PlainTable("session", "outcome", *titles, right=slice(2, None), whole=1)  # a session's name is copied
        for entry in of_key[-MOST_ROWS:]:
            amounts = [FIGURES[name].amount(entry.figures.get(name)) for name in names]
            table.add_row(entry.session, entry.outcome, *amounts)
        if enough:
            values = {name: [entry.figures[name] for entry in passed if name in entry.figures] for name in names}
            known = {name: baseline_of(values[name] or [float("nan")]) for name in names}
            table.add_section()
            table.add_row("baseline", "", *(FIGURES[name].amount(known[name].median) for name in names))
            table.add_row("limit", "", *(FIGURES[name].amount(limit(FIGURES[name], known[name])) for name in names))
        console.print(table)
        console.print()


def print_last(entries: Sequence[HistoryEntry], console: Console) -> None:
    """Print the last session of every run against those before it."""
    if not entries:
        _line(console, "no session yet: each adds an entry; `tunecheck history --rebuild` reads their folders again")
    by_run = sorted(entries, key=lambda entry: entry.run)  # stable: the oldest stays first
    for *earlier, last in grouped((entry.run, entry) for entry in by_run).values():
        before = [entry for entry in earlier if entry.key == last.key and entry.outcome == "pass"]
        print_figures(last, compare_figures(last, before, None), console)


def print_figures(entry: HistoryEntry, comparisons: Sequence[FigureComparison], console: Console) -> None:
    """Print one session's figures with their baselines and statuses."""
    heads = {"this session": "value", "previous": "previous", "baseline": "median", "limit": "limit"}
    columns = {h: [FIGURES[one.figure].amount(getattr(one, name)) for one in comparisons] for h, name in heads.items()}
    filled = {head: cells for head, cells in columns.items() if any(cells)}  # first sessions have no baseline yet
    table = PlainTable("figure", *filled, "status", right=slice(1, -1), whole=1)
    for one, *cells in zip(comparisons, *filled.values(), strict=True):
        sessions = f", {one.sessions} of {FEWEST_SESSIONS}" if one.status == "no baseline" else ""
        table.add_row(FIGURES[one.figure].title, *cells, _status(one.status, sessions))
    _line(console, f"{entry.run}, {entry.session}: {entry.outcome}, on {entry.key.device}, {entry.key.majors}")
    console.print(table)
    for line in {comparison.changed for comparison in comparisons if comparison.changed}:
        _line(console, f"changed since the previous session: {line}")
    console.print()


def print_comparisons(comparisons: Sequence[Comparison], console: Console) -> None:
    """Print each run of two sessions side by side."""
    for comparison in comparisons:
        before, after = comparison.outcomes
        _line(console, f"{comparison.run}: {before} → {after}")
        for answer in comparison.answers:
            _line(console, f"  {answer}")
        if comparison.changed:
            _line(console, f"  changed: {comparison.changed}")
        if comparison.incomparable:
            _line(console, f"  figures cannot be compared: {comparison.incomparable}")
            continue
        for line in comparison.disturbed:
            _line(console, f"  {line}")
        table = PlainTable("figure", "A", "B", "change", "counts from", "status", right=slice(1, -1), whole=1)
        for one in comparison.differences:
            amount = FIGURES[one.figure].amount
            status = _status(one.status, ", scatter unknown" if one.status == "suspect" else "")
            room = f"± {amount(one.room)}"
            change = relative_change(one.before, one.after)
            table.add_row(FIGURES[one.figure].title, amount(one.before), amount(one.after), change, room, status)
        console.print(table)
        known = f"the floors alone: fewer than {FEWEST_SESSIONS} sessions are in the history"
        if comparison.sessions:
            known = f"the scatter of {counted(comparison.sessions, 'session')}"
        _line(console, f"  limits are those of {known}")


def print_baselines(baselines: Mapping[Path, AcceptedBaseline], of: str, console: Console) -> None:
    """Print accepted baselines, or that there are none of these."""
    if not baselines:
        _line(console, f"no baseline {of}; create one with `tunecheck baseline accept RUN`")
    for path, baseline in baselines.items():
        _line(console, f"{path.name}: {baseline.run} on {baseline.key.device}, accepted {baseline.accepted_at}")
        table = PlainTable("figure", "median", "limit", "sessions", right=slice(1, None), whole=1)
        for figure, known in baseline.figures.items():
            limits = FIGURES[figure].amount(limit(FIGURES[figure], known)) if figure in FIGURES else ""
            median = FIGURES[figure].amount(known.median) if figure in FIGURES else f"{known.median:g}"
            table.add_row(figure, median, limits, str(known.sessions))
        console.print(table)


def _status(status: str, more: str = "") -> Text:
    return Text(f"{status}{more}", style=_STYLES.get(status, ""))


def _line(console: Console, text: str) -> None:
    console.print(Text(one_line(text)), soft_wrap=True)


class AttemptRow(Frozen):
    """One attempt to train, on its own device: a GPU's peak is never compared with a CPU's resident memory."""

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
        found = [_row(trace, attempt) for attempt in (*trace.trainings, *trace.made_for(AttemptPurpose.FALLBACK_STEP))]
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
