"""A fleet in words: its headline, its odd places and its kinds, for the terminal and for the page."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import median

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from tunecheck.core.finding import Finding, Status
from tunecheck.core.text import counted, human_bytes, one_line
from tunecheck.report.layout import PlainTable
from tunecheck.report.terminal import STYLES
from tunecheck.report.view import failure
from tunecheck.results.fleet import FleetReport, NodeRow, reasons
from tunecheck.results.fleet.kinds import FIGURES

MOST_ROWS = 20
"""Odd places in the terminal; the page has all."""
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
    """Yield what only the fleet shows to be wrong with a place."""
    yield from (finding for finding in row.findings if finding.status is Status.FAILED)


def figure_words(name: str, value: float | None) -> str:
    """Return a figure for a column; empty for none."""
    if value is None:
        return ""
    return human_bytes(value) if FIGURES[name].unit == "bytes" else f"{value:.4g}"


def kinds(report: FleetReport, figures: Iterable[str] = ()) -> list[Kind]:
    """Return each card or processor with its places, whether they agree, and the medians of these figures."""
    found: dict[str, list[NodeRow]] = {}
    for row in report.rows:
        if row.kind:
            found.setdefault(row.kind, []).append(row)
    made = []
    for name, rows in found.items():
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
        _print_row(row, console)
    if len(odd) > MOST_ROWS:
        console.print(Text(f"{len(odd) - MOST_ROWS} more are odd: fleet.html lists them\n", style="yellow"))
    console.print(Text(f"verdict: {fleet_headline(report)}", style=STYLES[report.verdict]), soft_wrap=True)


def _print_row(row: NodeRow, console: Console) -> None:
    console.print(Text.assemble((row.outcome.upper(), STYLES.get(row.outcome, "bold red")), " ", (row.place, "bold")))
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
