"""report.html: a session as one self-contained page, made from its report and its traces."""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from tunecheck.checks import SUBJECTS
from tunecheck.core.errors import HistoryError, TraceError
from tunecheck.core.evidence import RowShown
from tunecheck.core.text import facts, human_number, one_line, printable
from tunecheck.core.trace import Trace, read
from tunecheck.history.entry import HistoryEntry, history_entry
from tunecheck.history.store import Store, history_file
from tunecheck.report.page import tables
from tunecheck.report.page.chart import MOST_ROWS, Chart, Limit, Series, escape_into, legend, svg
from tunecheck.report.page.series import charts
from tunecheck.report.rows import piece_words, row_words
from tunecheck.report.view import STATUS_TITLES, RunView, SessionView, baseline_source, rule, session_view
from tunecheck.results import Report, RunReport, core_of
from tunecheck.results.baseline import FIGURES, MOST_SESSIONS, Figure, FigureComparison

PAGE_FILE = "report.html"
SHARES = {
    "points": (140, 14, 200),  # of a drawn curve
    "rows": (40, 4, MOST_ROWS),  # of a chart's table
    "words": (300, 40, 300),  # characters of a check's detail, in the table of all checks; failures are in full before
    "most_shown": (8, 1, 8),  # rows as the model got them
}
"""What a page has room for, and the fewest and most of it for one run: a page of ten runs stays under 300 kB."""
CURVES = {"loss": "Loss", "learning": "Loss", "gradients": "Gradient norms", "optimizer": "Learning rate"}
CURVES |= {"memory": "emory", "speed": "Throughput"}
"""Subject of checks to words of the titles of its curves."""
MOST_SETTINGS = 5
"""Runs whose whole configuration is on the page; of more of them it is in the traces, each one's first line."""
LONGEST_TEXT = 3000
"""Characters of any one text: what a model generates, or a library complains about, has no end by itself."""


def page_html(report: Report, folder: Path) -> str:
    """Return the content of report.html: it makes no request and runs one script of its own, all data escaped.

    The report's traces are read from the folder; a run whose trace is unreadable is shown without curves, and why.
    """
    view = session_view(report)
    runs = [_run(view, run, folder, number) for number, run in enumerate(view.runs, start=1)]
    each = max(1, len(runs))
    shares = {name: min(most, max(fewest, of_page // each)) for name, (of_page, fewest, most) in SHARES.items()}
    traces = {run["view"].name: run["trace"] for run in runs if run["trace"]}
    compared = [(comparison, tables.said(comparison, traces)) for comparison in view.side_by_side]
    script = verbatim("page.js")
    return template("page.html.jinja").render(
        session=view,
        report=report,
        runs=runs,
        settings=len(runs) <= MOST_SETTINGS,
        comparisons=compared,
        firsts={},
        style=verbatim("page.css", "rows.css"),
        script=script,
        script_hash=f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
        **shares,
    )


def rows_html(report: Report, folder: Path) -> str:
    """Return the rows of each run as a notebook shows them; empty where there are none."""
    show, title = vars(template("rows.html.jinja").module)["shown_rows"], "<h4>{}: first rows of the first step</h4>"
    traces = [(run.name, _trace(run, folder)[0]) for run in report.runs]
    told = [(name, trace.records(RowShown)) for name, trace in traces if trace]
    shown = [escape_into(title, name) + show(rows) for name, rows in told if rows]
    return f"<style>{verbatim('rows.css')}</style>{Markup().join(shown)}" if shown else ""


def _evidence(run: dict[str, Any], check: str) -> Iterator[tuple[str, str]]:
    """Yield where the page shows what a check is about: words and an anchor each."""
    subject = SUBJECTS.get(check, "")
    for number, chart in enumerate(run["charts"], start=1):
        if CURVES.get(subject, "none") in chart.title:
            yield f"curve: {chart.title}", f"{run['anchor']}-curves{number}"
    if subject in ("rows", "loss") and run["details"].get("rows"):
        yield "its rows", f"{run['anchor']}-rows"
    yield "among all checks", f"{run['anchor']}-{check}"


def _run(session: SessionView, view: RunView, folder: Path, number: int) -> dict[str, Any]:
    report, run = session.report, view.run
    trace, problem = _trace(run, folder)
    details: dict[str, Any] = {}
    if trace is not None:
        details = {
            "texts": tables.texts(trace),
            "rows": trace.records(RowShown),
            "phases": tables.phases(trace),
            "costs": tables.costs(trace),
            "attempts": tables.attempts(trace, run),
            "provenance": tables.provenance(trace, run),
            "settings": tables.settings(trace) if len(report.runs) <= MOST_SETTINGS else [],
        }
    log = (folder / (run.trace_file or "none")).with_suffix(".log")
    return {
        "view": view,
        "row": run,
        "trace": trace,
        "anchor": f"run-{number}",
        "core": core_of(trace) if trace else (),
        "problem": problem,
        "log": log.name if log.is_file() else "",
        "charts": charts(trace, run.findings) if trace else [],
        "trends": trends(report, run, trace, folder) if trace else ([], ""),
        "details": details,
    }


def _trace(run: RunReport, folder: Path) -> tuple[Trace | None, str]:
    if not run.trace_file:
        return None, ""
    try:
        return read(folder / run.trace_file), ""
    except TraceError as error:
        return None, f"no curves, since the trace cannot be used: {error}"


@lru_cache
def template(name: str) -> Template:
    """Return a template of this folder: everything that it shows is escaped, and free of control characters."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"facts": facts, "legend": legend, "svg": svg}
    environment.filters |= {"line": one_line, "rule": rule, "evidence": _evidence, "number": human_number}
    environment.filters |= {"row_words": row_words, "piece_words": piece_words}
    return environment.get_template(name)


@lru_cache
def verbatim(*names: str) -> Markup:
    """Return these files of this folder as they are."""
    return Markup("".join((Path(__file__).parent / name).read_text(encoding="utf-8") for name in names))


def _shown(value: Any) -> Any:
    """Clean a text of the page before it is escaped: no control characters, no endless lines."""
    if value is None or not isinstance(value, str) or isinstance(value, Markup):
        return value
    text = printable(value)
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}… ({len(text):,} characters)"


MIB = 2**20
SESSIONS_OF_A_PAGE = 60
"""Drawn, shared by the runs: a page of ten stays under 300 kB."""


def trends(report: Report, run: RunReport, trace: Trace, folder: Path) -> tuple[list[Chart], str]:
    """Chart the last sessions of this run's key by figure; also return why not. Nothing for a run without a history."""
    entry = history_entry(run, trace, session=folder.name, started_at=report.started_at)
    if entry is None:
        return [], ""
    try:
        before = Store(history_file(folder.parent)).entries(key=entry.key, before=entry.started_at, last=MOST_SESSIONS)
    except HistoryError as error:
        return [], f"no previous sessions, since the history cannot be used: {error}"
    comparisons = {one.figure: one for one in report.figure_comparisons if one.run == run.name}
    shown = min(MOST_SESSIONS, SESSIONS_OF_A_PAGE // max(1, len(report.runs)) + 1)
    entries = [*before[-shown:], entry]
    made = [_chart(figure, entries, comparisons.get(name)) for name, figure in FIGURES.items() if name in entry.figures]
    return [chart for chart in made if chart is not None], ""


def _chart(figure: Figure, entries: Sequence[HistoryEntry], comparison: FigureComparison | None) -> Chart | None:
    held = [entry for entry in entries if figure.name in entry.figures]
    if len(held) < 2:  # one session is no trend
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
