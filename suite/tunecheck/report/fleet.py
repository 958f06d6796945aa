"""A fleet in words: headline, odd places and kinds, for the page and for the terminal, also while it answers."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from statistics import median

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from tunecheck.core.check import grouped
from tunecheck.core.finding import Finding, Status
from tunecheck.core.text import counted, human_bytes, human_seconds, one_line
from tunecheck.report.layout import PlainTable
from tunecheck.report.page import PAGE_FILE, template, verbatim
from tunecheck.report.terminal import STYLES
from tunecheck.report.view import failure
from tunecheck.results.fleet import FleetReport, Heard, NodeRow, reasons
from tunecheck.results.fleet.kinds import FIGURES

FLEET_PAGE = "fleet.html"
MOST_ODD, MOST_WHOLE, MOST_CHECKS = 400, 300, 12
"""Odd places in full, healthy ones with their figures, and columns of checks: ten thousand places stay below 2 MB."""
MOST_ROWS = 20
"""Odd places in the terminal; the page has all."""
MOST_LIVE = 15
"""Places in the table that changes while a fleet answers: what runs, then what came in last."""
AGREEMENT = {Status.PASSED: "agree to the last bit", Status.FAILED: "differ", Status.UNJUDGED: "not compared"}


@dataclass(frozen=True, slots=True)
class Kind:
    """The places with one card or processor."""

    name: str
    places: int
    agreement: str
    medians: tuple[str, ...]
    """Of the figures that were asked for."""


def fleet_headline(report: FleetReport) -> str:
    """Return the verdict with its counts: "FAIL — 64 places on 64 nodes: 61 pass, 3 fail; 3 nodes to drain"."""
    counts = Counter(row.outcome for row in report.rows)
    nodes = len({row.node for row in report.rows})
    said = ", ".join(f"{number} {outcome}" for outcome, number in counts.most_common())
    parts = [f"{counted(len(report.rows), 'place')} on {counted(nodes, 'node')}: {said or 'none'}"]
    if odd := sum(row.odd and row.outcome == "pass" for row in report.rows):
        parts.append(f"{odd} of those that pass with a remark")
    if drained := len(reasons(report)):
        parts.append(f"{counted(drained, 'node')} to drain")
    return "; ".join([f"{report.verdict.upper()} — {parts[0]}", *parts[1:], *["interrupted"] * report.interrupted])


def said_of(row: NodeRow) -> list[tuple[str, str]]:
    """Return what is odd about a place, as labels and sentences."""
    said = [("reason", row.reason)] if row.reason else []
    said += [(finding.check, finding.detail) for finding in failures(row)]
    said += [(f"{f.check}, unjudged", f.detail) for f in row.findings if f.status is Status.UNJUDGED and not f.expected]
    said += [("failed", ", ".join(row.failed))] if row.failed else []
    said += [("unjudged", words) for words in row.unjudged]
    said += [("remark", remark) for remark in row.remarks]
    return said + ([("drain", row.drain)] if row.drain and row.drain != row.reason and not any(failures(row)) else [])


def failures(row: NodeRow) -> Iterator[Finding]:
    yield from (finding for finding in row.findings if finding.status is Status.FAILED)


def figure_words(name: str, value: float | None) -> str:
    """Return a figure for a column; empty for none."""
    return "" if value is None else human_bytes(value) if FIGURES[name].unit == "bytes" else f"{value:.4g}"


def kinds(report: FleetReport, figures: Iterable[str] = ()) -> list[Kind]:
    """Return each card or processor with its places, whether they agree, and the medians of these figures."""
    made = []
    for name, rows in grouped((row.kind, row) for row in report.rows if row.kind).items():
        values = {figure: [row.figures[figure] for row in rows if figure in row.figures] for figure in figures}
        medians = [figure_words(figure, median(held) if held else None) for figure, held in values.items()]
        agreed = Counter(f.status for row in rows for f in row.findings if f.check == "nodes_agree")
        words = ", ".join(f"{number} {AGREEMENT[status]}" for status, number in agreed.most_common())
        made.append(Kind(name, len(rows), words or "nothing to compare", tuple(medians)))
    return made


def print_fleet(report: FleetReport, console: Console) -> None:
    """Print the odd places, what each is, and the verdict on the last line."""
    odd = [row for row in report.rows if row.odd]
    for kind in kinds(report):
        console.print(Text(f"{kind.name}: {counted(kind.places, 'place')}; {kind.agreement}", style="dim"))
    for note in report.notes:
        console.print(Text(one_line(note), style="yellow"))
    console.print()
    for row in odd[:MOST_ROWS]:
        said = (row.outcome.upper(), STYLES.get(row.outcome, "bold red"))
        console.print(Text.assemble(said, " ", (row.place, "bold")))
        grid = PlainTable(gap=2)
        grid.add_column(no_wrap=True, style="dim")
        grid.add_column(overflow="fold")
        details = {label: text for finding in failures(row) for label, text in failure("", finding).rows}
        lines = [(label, text) for label, text in said_of(row) if label != "drain"]
        lines += [(label, details[label]) for label in ("usually means", "what to do") if label in details]
        for label, text in lines:
            grid.add_row(label, Text(one_line(text, 400)))
        console.print(Padding.indent(grid, 2))
        console.print()
    if len(odd) > MOST_ROWS:
        console.print(Text(f"{len(odd) - MOST_ROWS} more are odd: fleet.html lists them\n", style="yellow"))
    console.print(Text(f"verdict: {fleet_headline(report)}", style=STYLES[report.verdict]), soft_wrap=True)


def fleet_html(report: FleetReport) -> str:
    """Return the content of fleet.html: it makes no request and runs no script, all data escaped."""
    odd = [row for row in report.rows if row.odd]
    sound = [row for row in report.rows if not row.odd]
    figures = {name: figure for name, figure in FIGURES.items() if any(name in row.figures for row in report.rows)}
    return template("fleet.html.jinja").render(
        report=report,
        headline=fleet_headline(report),
        odd=odd[:MOST_ODD],
        more_odd=odd[MOST_ODD:],
        sound=sound[:MOST_WHOLE],
        more_sound=sound[MOST_WHOLE:],
        checks=[check for check, _ in Counter(check for row in odd for check in _broken(row)).most_common(MOST_CHECKS)],
        said_of=said_of,
        broken=_broken,
        figure_words=figure_words,
        human_seconds=human_seconds,
        page_file=PAGE_FILE,
        figures=figures,
        kinds=kinds(report, figures),
        drained=reasons(report),
        style=verbatim("page.css"),
    )


def _broken(row: NodeRow) -> list[str]:
    own = [name.partition(": ")[2] for name in row.failed]
    return [*dict.fromkeys([*(finding.check for finding in failures(row)), *own])]


@contextmanager
def watcher(console: Console) -> Iterator[Callable[..., None]]:
    """Yield what shows a session's state, and what its engine is in trouble with, while the block is executed."""
    told: dict[str, str] = {}
    table = Live(console=console, refresh_per_second=2, transient=True) if console.is_terminal else None

    def watch(heard: Mapping[str, Heard], trouble: str = "") -> None:
        now = {"": trouble} | {name: _state(one) for name, one in heard.items()}
        lines = {name: one_line(words, 200) for name, words in now.items() if words}
        news = {name: line for name, line in lines.items() if told.get(name) != line}
        told.update(news)
        if table is not None and news:
            counts = Counter(one.state for one in heard.values())
            said = [*(f"{number} {state}" for state, number in counts.items() if state), f"{counts['']} not asked"]
            shown = PlainTable(gap=2)
            for name, words in list(told.items())[-MOST_LIVE:]:
                shown.add_row(Text(name), Text(words, overflow="ellipsis", no_wrap=True))
            table.update(Group(Text(f"{len(heard)} places: {', '.join(said)}", style="bold"), shown))
        for name, words in news.items() if table is None else ():
            console.print(Text(f"  {name}: {words}" if name else f"  {words}"), soft_wrap=True)

    with table or nullcontext():
        yield watch


def _state(heard: Heard) -> str:
    """Return the state of a place, once it has answered what it said; empty for one that is not asked now."""
    if (answer := heard.answer) is None or heard.state != "answered":
        return heard.said
    if answer.problem:
        return f"problem: {answer.problem}"
    runs = ", ".join(f"{run.run} {run.outcome}, {run.passed} passed, {len(run.failed)} failed" for run in answer.runs)
    return f"{runs or f'status {answer.status}'}, {human_seconds(answer.ended_at - answer.began_at)}"
