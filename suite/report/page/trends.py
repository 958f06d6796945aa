"""The nights of a run as charts: one for each figure that has a history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from suite.core.errors import HistoryError
from suite.core.trace import Trace
from suite.history.night import Night, night_of
from suite.history.store import Store, history_file
from suite.report.history import source
from suite.report.page.chart import Chart, Limit, Series
from suite.results import Report, RunReport
from suite.results.baseline import MOST_SESSIONS, FigureComparison
from suite.results.figures import FIGURES, Figure

MIB = 2**20
FEWEST_POINTS = 2
"""One night is no trend."""
NIGHTS_OF_A_PAGE = 60
"""Drawn, shared by the runs: a page of ten stays under 300 kB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trends:
    """The charts of a run's nights, and what kept them from being drawn; empty for a run without a history."""

    charts: tuple[Chart, ...] = ()
    problem: str = ""


def trends(report: Report, run: RunReport, trace: Trace, folder: Path) -> Trends:
    """The last nights of this run's key up to this session, by figure, with what is usual and where worse begins."""
    night = night_of(run, trace, session=folder.name, started_at=report.started_at)
    if night is None:
        return Trends()
    try:
        before = Store(history_file(folder.parent)).nights(key=night.key, before=night.started_at)
    except HistoryError as error:
        return Trends(problem=f"no nights before, since the history cannot be used: {error}")
    standings = {standing.figure: standing for standing in report.figure_comparisons if standing.run == run.name}
    shown = min(MOST_SESSIONS, NIGHTS_OF_A_PAGE // max(1, len(report.runs)) + 1)
    nights = [*before[-shown:], night]
    made = [_chart(figure, nights, standings.get(name)) for name, figure in FIGURES.items() if name in night.figures]
    return Trends(charts=tuple(chart for chart in made if chart is not None))


def _chart(figure: Figure, nights: Sequence[Night], standing: FigureComparison | None) -> Chart | None:
    held = [night for night in nights if figure.name in night.figures]
    if len(held) < FEWEST_POINTS:
        return None
    scale = MIB if figure.unit == "bytes" else 1
    points = tuple((place, night.figures[figure.name] / scale) for place, night in enumerate(held, start=1))
    series = [Series(name="each night", points=points)]
    limits: tuple[Limit, ...] = ()
    if standing is not None and standing.median is not None and standing.limit is not None:
        usual = standing.median / scale
        series.append(Series(name=source(standing), points=((1, usual), (len(held), usual))))
        limits = (Limit(name="worse beyond", value=standing.limit / scale),)
    return Chart(
        title=f"{figure.title[0].upper()}{figure.title[1:]} by night",
        x_name="night, the last one is this session's",
        unit="MiB" if figure.unit == "bytes" else figure.unit,
        series=tuple(series),
        limits=limits,
        note=_note(figure, held, standing),
        of_nights=True,
    )


def _note(figure: Figure, held: Sequence[Night], standing: FigureComparison | None) -> str:
    better = "lower" if figure.lower_is_better else "higher"
    span = f"{held[0].started_at[:10]} to {held[-1].started_at[:10]}; {better} is better."
    if standing is None or standing.status == "steady":
        return span
    status = standing.status if standing.status != "suspect" else "worse for the first night"
    told = f" This night: {status}" + (
        f", after {standing.sessions} nights." if standing.status == "no baseline" else "."
    )
    return f"{span}{told}"


def unusual(report: Report) -> list[FigureComparison]:
    """The standings that a page tells before its curves: regressions first."""
    order = ("worse", "suspect", "better")
    return sorted(
        (standing for standing in report.figure_comparisons if standing.status in order),
        key=lambda standing: order.index(standing.status),
    )
