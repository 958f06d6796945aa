"""A run's history as charts: one for each figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tunecheck.core.errors import HistoryError
from tunecheck.core.trace import Trace
from tunecheck.history.entry import HistoryEntry, history_entry
from tunecheck.history.store import Store, history_file
from tunecheck.report.figures import STATUS_TITLES, baseline_source
from tunecheck.report.page.chart import Chart, Limit, Series
from tunecheck.results import Report, RunReport
from tunecheck.results.baseline import MOST_SESSIONS, FigureComparison
from tunecheck.results.figures import FIGURES, Figure

MIB = 2**20
FEWEST_POINTS = 2
"""One session is no trend."""
SESSIONS_OF_A_PAGE = 60
"""Drawn, shared by the runs: a page of ten stays under 300 kB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trends:
    """Charts of a run's history, and what kept them from being drawn; empty for a run without a history."""

    charts: tuple[Chart, ...] = ()
    problem: str = ""


def trends(report: Report, run: RunReport, trace: Trace, folder: Path) -> Trends:
    """Chart the last sessions of this run's key up to this one, by figure, with baseline and limit."""
    entry = history_entry(run, trace, session=folder.name, started_at=report.started_at)
    if entry is None:
        return Trends()
    try:
        before = Store(history_file(folder.parent)).entries(key=entry.key, before=entry.started_at, last=MOST_SESSIONS)
    except HistoryError as error:
        return Trends(problem=f"no previous sessions, since the history cannot be used: {error}")
    comparisons = {
        comparison.figure: comparison for comparison in report.figure_comparisons if comparison.run == run.name
    }
    shown = min(MOST_SESSIONS, SESSIONS_OF_A_PAGE // max(1, len(report.runs)) + 1)
    entries = [*before[-shown:], entry]
    made = [_chart(figure, entries, comparisons.get(name)) for name, figure in FIGURES.items() if name in entry.figures]
    return Trends(charts=tuple(chart for chart in made if chart is not None))


def _chart(figure: Figure, entries: Sequence[HistoryEntry], comparison: FigureComparison | None) -> Chart | None:
    held = [entry for entry in entries if figure.name in entry.figures]
    if len(held) < FEWEST_POINTS:
        return None
    scale = MIB if figure.unit == "bytes" else 1
    points = tuple((place, entry.figures[figure.name] / scale) for place, entry in enumerate(held, start=1))
    series = [Series(name="each session", points=points)]
    limits: tuple[Limit, ...] = ()
    if comparison is not None and comparison.median is not None and comparison.limit is not None:
        median = comparison.median / scale
        series.append(Series(name=baseline_source(comparison), points=((1, median), (len(held), median))))
        limits = (Limit(name="regression beyond", value=comparison.limit / scale),)
    return Chart(
        title=f"{figure.title[0].upper()}{figure.title[1:]} by session",
        x_name="session, the last one is this one",
        unit="MiB" if figure.unit == "bytes" else figure.unit,
        series=tuple(series),
        limits=limits,
        note=_note(figure, held, comparison),
        of_sessions=True,
    )


def _note(figure: Figure, held: Sequence[HistoryEntry], comparison: FigureComparison | None) -> str:
    better = "lower" if figure.lower_is_better else "higher"
    span = f"{held[0].started_at[:10]} to {held[-1].started_at[:10]}; {better} is better."
    if comparison is None or comparison.status == "steady":
        return span
    status = STATUS_TITLES.get(comparison.status, comparison.status).lower()
    after = f", after {comparison.sessions} sessions" if comparison.status == "no baseline" else ""
    return f"{span} This session: {status}{after}."
