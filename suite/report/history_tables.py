"""Nights, standings, comparisons and baselines as tables of a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from suite.core.text import counted, one_line
from suite.history.baseline import Baseline
from suite.history.compare import Comparison, Difference
from suite.history.night import Key, Night
from suite.history.remember import held_against
from suite.report.history import amount, changed_by
from suite.results.baseline import FEWEST_SESSIONS, FigureComparison, baseline_of, limit
from suite.results.figures import FIGURES

MOST_ROWS = 40
"""Nights of one table; --json has all."""
_STYLES = {"worse": "bold red", "suspect": "yellow", "better": "green", "no baseline": "yellow"}


def print_nights(run: str, nights: Sequence[Night], console: Console) -> None:
    """A table for each key of this run, the newest key last, its nights below each other, and what is usual."""
    keys = dict.fromkeys(night.key for night in nights)
    for key in keys:
        _print_key(run, key, [night for night in nights if night.key == key], console)


def print_last(nights: Sequence[Night], console: Console) -> None:
    """The last night of every run against those before it."""
    if not nights:
        _line(
            console, "no night yet: each session adds one; `tunecheck history --rebuild` reads those in their folders"
        )
    by_run = sorted(nights, key=lambda night: night.run)  # stable: the oldest stays first
    for _, held in groupby(by_run, key=lambda night: night.run):
        *_, last = of_run = list(held)
        before = [night for night in of_run[:-1] if night.key == last.key and night.outcome == "pass"]
        print_standings(last, held_against(last, before, None), console)


def print_standings(night: Night, standings: Sequence[FigureComparison], console: Console) -> None:
    """One night's figures with what is usual, and where they stand."""
    columns = {
        "this night": [amount(one.figure, one.value) for one in standings],
        "the one before": [_amount(one.figure, one.previous) for one in standings],
        "usual": [_amount(one.figure, one.median) for one in standings],
        "limit": [_amount(one.figure, one.limit) for one in standings],
    }
    filled = {head: cells for head, cells in columns.items() if any(cells)}  # the first nights know nothing else
    table = _table("figure", *filled, "status")
    for one, *cells in zip(standings, *filled.values(), strict=True):
        nights = f", {one.sessions} of {FEWEST_SESSIONS}" if one.status == "no baseline" else ""
        table.add_row(FIGURES[one.figure].title, *cells, _status(one.status, nights))
    _line(console, f"{night.run}, {night.session}: {night.outcome}, on {night.key.device}, {night.key.majors}")
    console.print(table)
    changes = {standing.changed for standing in standings if standing.changed}
    for line in changes:
        _line(console, f"changed since the night before: {line}")
    console.print()


def print_comparison(comparison: Comparison, console: Console) -> None:
    """One run of two sessions."""
    before, after = comparison.outcomes
    _line(console, f"{comparison.run}: {before} → {after}")
    for answer in comparison.answers:
        _line(console, f"  {answer}")
    if comparison.changed:
        _line(console, f"  changed: {comparison.changed}")
    if comparison.incomparable:
        _line(console, f"  figures cannot be compared: {comparison.incomparable}")
        return
    for line in comparison.disturbed:
        _line(console, f"  {line}")
    table = _table("figure", "A", "B", "change", "counts from", "status")
    for one in comparison.differences:
        table.add_row(*_difference(one))
    console.print(table)
    known = f"the scatter of {counted(comparison.nights, 'night')}" if comparison.nights else "the floors alone"
    few = "" if comparison.nights else f": fewer than {FEWEST_SESSIONS} nights are in the history"
    _line(console, f"  limits are those of {known}{few}")


def print_baseline(name: str, baseline: Baseline, console: Console) -> None:
    """What one file says."""
    _line(console, f"{name}: {baseline.run} on {baseline.key.device}, accepted {baseline.accepted_at}")
    table = _table("figure", "usual", "limit", "nights")
    for figure, known in baseline.figures.items():
        limits = amount(figure, limit(FIGURES[figure], known)) if figure in FIGURES else ""
        table.add_row(
            figure,
            f"{known.median:g}" if figure not in FIGURES else amount(figure, known.median),
            limits,
            str(known.sessions),
        )
    console.print(table)


def _print_key(run: str, key: Key, nights: list[Night], console: Console) -> None:
    passed = [night for night in nights if night.outcome == "pass"]
    enough = len(passed) >= FEWEST_SESSIONS
    status = "" if enough else f", no baseline: {len(passed)} of {FEWEST_SESSIONS} passed nights"
    _line(console, f"{run} as {key.fingerprint} on {key.device}, {key.majors}: {counted(len(nights), 'night')}{status}")
    names = [name for name in FIGURES if any(name in night.figures for night in nights)]
    table = _table("session", "outcome", *(FIGURES[name].title for name in names))
    for night in nights[-MOST_ROWS:]:
        table.add_row(night.session, night.outcome, *(_amount(name, night.figures.get(name)) for name in names))
    if enough:
        known = {
            name: baseline_of([n.figures[name] for n in passed if name in n.figures] or [float("nan")])
            for name in names
        }
        table.add_section()
        table.add_row("usual", "", *(amount(name, known[name].median) for name in names))
        table.add_row("worse beyond", "", *(amount(name, limit(FIGURES[name], known[name])) for name in names))
    console.print(table)
    console.print()


def _difference(one: Difference) -> tuple[str | Text, ...]:
    return (
        FIGURES[one.figure].title,
        amount(one.figure, one.before),
        amount(one.figure, one.after),
        changed_by(one.before, one.after),
        f"± {amount(one.figure, one.room)}",
        _status(one.status, ", scatter unknown" if one.status == "suspect" else ""),
    )


def _table(*heads: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for place, head in enumerate(heads):
        justify: Literal["left", "right"] = "right" if 0 < place < len(heads) - 1 else "left"
        table.add_column(head, justify=justify, overflow="fold", no_wrap=place == 0)  # a session's name is copied
    return table


def _status(status: str, more: str = "") -> Text:
    return Text(f"{status}{more}", style=_STYLES.get(status, ""))


def _amount(figure: str, value: float | None) -> str:
    return "" if value is None else amount(figure, value)


def _line(console: Console, text: str) -> None:
    console.print(Text(one_line(text)), soft_wrap=True)
