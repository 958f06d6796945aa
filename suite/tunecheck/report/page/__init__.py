"""report.html: a session as one self-contained page, made from its report and its traces."""

from base64 import b64encode
from collections.abc import Iterator
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from tunecheck.checks import SUBJECTS
from tunecheck.core.errors import TraceError
from tunecheck.core.evidence import RowShown
from tunecheck.core.text import facts, human_number, one_line, printable
from tunecheck.core.trace import Trace, read
from tunecheck.report.page import chart as drawing
from tunecheck.report.page import tables
from tunecheck.report.page.series import charts, trends
from tunecheck.report.rows import piece_words, row_words
from tunecheck.report.view import RunView, rule, session_view
from tunecheck.results import Report, RunReport, core_of

PAGE_FILE = "report.html"
SHARES = {
    "points": (140, 14, 200),  # of a drawn curve
    "rows": (40, 4, drawing.MOST_ROWS),  # of a chart's table
    "words": (300, 40, 300),  # characters of a check's detail, in the table of all checks; failures are in full before
    "most_shown": (8, 1, 8),  # rows as the model got them
}
"""What a page has room for, and the fewest and most of it for one run: a page of ten runs stays under 300 kB."""
CURVES = {"loss": "Loss", "learning": "Loss", "gradients": "Gradient norms", "optimizer": "Learning rate"}
CURVES |= {"memory": "emory", "speed": "Throughput"}
"""Subject of checks to words of the titles of its curves."""

LONGEST_TEXT = 3000
"""Characters of any one text: what a model generates, or a library complains about, has no end by itself."""


def page_html(report: Report, folder: Path) -> str:
    """Return report.html of the report and the traces in the folder: no request, one script, all data escaped."""
    view = session_view(report)
    runs = [_run(report, run, folder, number) for number, run in enumerate(view.runs, start=1)]
    each = max(1, len(runs))
    traces = {run["view"].name: run["trace"] for run in runs if run["trace"]}
    script = verbatim("page.js")
    return template("page.html.jinja").render(
        session=view,
        report=report,
        runs=runs,
        settings=len(runs) <= 5,  # of more of them the configuration is in the traces, each one's first line
        comparisons=[(comparison, tables.said(comparison, traces)) for comparison in view.side_by_side],
        firsts={},
        style=verbatim("page.css", "rows.css"),
        script=script,
        script_hash=f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
        **{name: min(most, max(fewest, of_page // each)) for name, (of_page, fewest, most) in SHARES.items()},
    )


def rows_html(report: Report, folder: Path) -> str:
    """Return the rows of each run as a notebook shows them; empty where there are none."""
    show = vars(template("rows.html.jinja").module)["shown_rows"]
    title = Markup("<h4>{}: first rows of the first step</h4>")
    traces = [(run.name, _trace(run, folder)[0]) for run in report.runs]
    told = [(name, trace.records(RowShown)) for name, trace in traces if trace]
    shown = [title.format(printable(name)) + show(rows) for name, rows in told if rows]
    return f"<style>{verbatim('rows.css')}</style>{Markup().join(shown)}" if shown else ""


def _evidence(run: dict[str, Any], check: str) -> Iterator[tuple[str, str]]:
    """Yield where the page shows what a check is about: words and an anchor each."""
    subject = SUBJECTS.get(check, "")
    for number, chart in enumerate(run["charts"], start=1):
        if CURVES.get(subject, "none") in chart.title:
            yield f"curve: {chart.title}", f"{run['anchor']}-curves{number}"
    if subject in ("rows", "loss") and run["rows"]:
        yield "its rows", f"{run['anchor']}-rows"
    yield "among all checks", f"{run['anchor']}-{check}"


def _run(report: Report, view: RunView, folder: Path, number: int) -> dict[str, Any]:
    run = view.run
    trace, problem = _trace(run, folder)
    return {
        "view": view,
        "row": run,
        "trace": trace,
        "anchor": f"run-{number}",
        "core": core_of(trace) if trace else (),
        "problem": problem,
        "log": log.name if (log := (folder / (run.trace_file or "none")).with_suffix(".log")).is_file() else "",
        "charts": charts(trace, run.findings) if trace else [],
        "trends": trends(report, run, trace, folder) if trace else ([], ""),
        "rows": trace.records(RowShown) if trace else [],
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
    environment.globals |= {"facts": facts, "drawing": drawing, "tables": tables}
    environment.tests["finite"] = drawing.finite
    environment.filters |= {"line": one_line, "rule": rule, "evidence": _evidence, "number": human_number}
    environment.filters |= {"row_words": row_words, "piece_words": piece_words}
    return environment.get_template(name)


@lru_cache
def verbatim(*names: str) -> Markup:
    return Markup("".join((Path(__file__).parent / name).read_text(encoding="utf-8") for name in names))


def _shown(value: Any) -> Any:
    """Clean a text of the page before it is escaped: no control characters, no endless lines."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    text = printable(value)
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}… ({len(text):,} characters)"
