"""The report in a terminal: one table, then what failed and why, then the verdict on the last line."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from suite.core.finding import Finding
from suite.core.text import human_bytes, human_number, human_seconds, one_line
from suite.report.history import TITLES, in_short, title, told
from suite.report.sparkline import sparkline
from suite.results import Report, RunReport
from suite.results.baseline import FigureComparison
from suite.results.comparison import Comparison, comparisons, condensed
from suite.results.words import (
    company_words,
    domain_words,
    headline,
    other_data,
    probe_loss_words,
    repaired,
    retries,
    too_busy,
    training_loss_words,
    unjudged_groups,
    untold,
)

_STYLES = {"pass": "green", "fail": "bold red", "inconclusive": "yellow", "error": "bold red", "skipped": "yellow"}
_ASCII = str.maketrans({"→": "->", "—": "-", "…": "..."})
_WIDE = 100
"""Columns from which the table has room for longer curves."""
_FIXED_COLUMNS = 11 + 9 + 10 + 5
"""The widest check count, peak and time, and the gaps between six columns."""

_LONGEST_STRATEGY = len("last_layers_and_head")


def print_report(report: Report, console: Console) -> None:
    """The report is on the console, the verdict last. Data is not read as markup and sends no escape sequence."""
    printer = _Printer(console)
    if report.runs:
        console.print(printer.table(condensed(report.runs)))
        console.print()
    for comparison in comparisons(report.runs):
        printer.comparison(comparison)
    for run in condensed(report.runs):
        printer.notes(run)
    for run in report.runs:
        for finding in run.failed:
            printer.failure(run, finding)
    for expected in (False, True):
        for run in report.runs:
            printer.unjudged(run, expected=expected)
    printer.history(report)
    # Never wrapped, so that the last line of a log is the whole verdict.
    console.print(printer.text(f"verdict: {headline(report)}", _STYLES[report.verdict]), soft_wrap=True)


class _Printer:
    """The parts of the report, fitted to one console's width and alphabet."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.ascii_only = console.options.ascii_only

    def text(self, data: str, style: str = "") -> Text:
        """One line of data as it is: no markup, no control characters, in the console's alphabet."""
        line = one_line(data)
        if self.ascii_only:
            line = line.translate(_ASCII).encode("ascii", "replace").decode()
        return Text(line, style=style)

    def table(self, runs: Sequence[RunReport]) -> Table:
        """A row of a few lines for each run, within the console's width from 80 columns up."""
        cells = 20 if self.console.width >= _WIDE else 19
        room = max(self.console.width - cells - _FIXED_COLUMNS, 20)
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
        for heading in ("run", "device", "checks", "loss"):
            table.add_column(heading, overflow="fold")
        for heading in ("peak", "time"):
            table.add_column(heading, justify="right", no_wrap=True)
        for run in runs:
            table.add_row(*self.row(run, name_width=room * 3 // 5, device_width=room * 2 // 5, cells=cells))
        return table

    def row(self, run: RunReport, *, name_width: int, device_width: int, cells: int) -> list[Text]:
        """The cells of a run's row."""
        # the probe batch's rows are fixed; the steps' own losses scatter with theirs, so of them the shape says more
        probe, steps = probe_loss_words(run), training_loss_words(run)
        ends = f"probe {probe}" if probe else f"steps {steps}" if steps else ""
        curve = "" if self.ascii_only else sparkline(run.losses, cells - len("steps "))
        peak = ("", "") if run.peak_bytes is None else (human_bytes(run.peak_bytes), run.peak_kind)
        return [
            self.lines(_name_lines(run, name_width)),
            self.lines(_device_lines(run.device, device_width)),
            self.checks(run),
            _joined([self.text(ends), Text.assemble("steps ", self.text(curve, "cyan")) if curve else Text()]),
            self.lines(peak),
            self.text(human_seconds(run.seconds) if run.seconds else ""),
        ]

    def lines(self, data: Sequence[str]) -> Text:
        """Data below each other, without the empty parts."""
        return _joined([self.text(part) for part in data])

    def checks(self, run: RunReport) -> Text:
        """How many checks passed, failed and are unjudged; the outcome for a run without findings."""
        if not run.findings:
            return self.text(run.outcome, _STYLES[run.outcome])
        counts = (
            ("passed", run.passed, "green"),
            ("failed", run.failed, "bold red"),
            ("unjudged", run.unjudged, "yellow"),
        )
        return _joined([self.text(f"{len(found)} {word}", style if found else "dim") for word, found, style in counts])

    def comparison(self, comparison: Comparison) -> None:
        """Its table, a row of two lines for each run, and what its numbers mean."""
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
        table.add_column("", justify="right")
        table.add_column("strategy, trained", min_width=_LONGEST_STRATEGY, overflow="fold")
        for heading, width in (("held-out perplexity", 10), ("training loss", 8), ("time, rows/s", 10)):
            table.add_column(heading, max_width=width, overflow="fold")
        table.add_column("peak, device", overflow="fold")
        for place, name, trained, perplexity, loss, time, rate, peak, device in comparison.rows():
            cells = [[place], [name, trained], _halves(perplexity), _halves(loss), [time, rate], [peak, device]]
            table.add_row(*(self.lines(cell) for cell in cells))
        self.block(f"{comparison.title}: {comparison.ranking}", "bold", table)
        for note in comparison.notes():
            self.console.print(self.text(note))
        if comparison.notes():
            self.console.print()

    def notes(self, run: RunReport) -> None:
        """What a reader of the row must know: repeated attempts, other data, and why there is no judgement."""
        sentences = [(sentence, "yellow") for sentence in _remarks(run)]
        sentences += [(f"{run.outcome}: {untold(run)}", _STYLES[run.outcome])] if untold(run) else []
        for sentence, style in sentences:
            self.block(f"{run.name}: {sentence}", style)

    def failure(self, run: RunReport, finding: Finding) -> None:
        """What a failed check measured, what that usually means and what to do."""
        rows = {
            "measured": f"{human_number(finding.measured)}, limit {human_number(finding.limit)}",
            "detail": finding.detail,
            "usually means": finding.meaning,
            "what to do": finding.remedy,
            "domain": domain_words(finding),
        }
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True, style="dim")
        grid.add_column(overflow="fold")
        for label, data in rows.items():
            if data:
                grid.add_row(label, self.text(data))
        self.block(f"FAILED {run.name}: {finding.check}", "bold red", grid)

    def unjudged(self, run: RunReport, *, expected: bool) -> None:
        """The run's unjudged checks, expected or not, with the reason they share."""
        label, style = ("unjudged, as expected:", "dim") if expected else ("UNJUDGED", "yellow")
        for group in unjudged_groups(run):
            if group.expected is expected:
                self.block(f"{label} {run.name}: {', '.join(group.checks)}", style, self.text(group.reason))

    def history(self, report: Report) -> None:
        """Figures that are not as usual, then what else there is to say about the nights before."""
        for status, words in TITLES.items():
            for standing in report.figure_comparisons:
                if standing.status == status:
                    self.standing(standing, words)
        lines = [f"{run}: {sentence}" for run, sentence in in_short(report.figure_comparisons)]
        lines += [f"history: {note}" for note in report.history_notes]
        for line in lines:
            self.console.print(self.text(line, "dim"))
        if lines:
            self.console.print()

    def standing(self, standing: FigureComparison, words: str) -> None:
        """A figure that is not as usual."""
        style = "green" if standing.status == "better" else "yellow"
        self.block(f"{words} {standing.run}: {title(standing)}", style, self.text(told(standing)))

    def block(self, title: str, style: str, body: RenderableType | None = None) -> None:
        """A title, what belongs to it indented below, and an empty line."""
        self.console.print(self.text(title, style))
        if body is not None:
            self.console.print(Padding.indent(body, 2))
        self.console.print()


def _remarks(run: RunReport) -> list[str]:
    """What is out of the ordinary."""
    return [*retries(run), *other_data(run), *repaired(run), *(company_words(run) if too_busy(run) else ())]


def _joined(texts: list[Text]) -> Text:
    """The texts below each other, without the empty ones."""
    return Text("\n").join([text for text in texts if text])


def _halves(change: str) -> list[str]:
    """From where, and below it to where."""
    before, arrow, after = change.partition(" → ")
    return [before, f"→ {after}" if arrow else ""]


def _name_lines(run: RunReport, width: int) -> list[str]:
    """The run's name, broken where a reader would break it: after the tier and at hyphens."""
    return [run.name] if len(run.name) <= width else [f"{run.tier}/", *textwrap.wrap(run.run, width)]


def _device_lines(device: str, width: int) -> list[str]:
    """The device and below it the name of the card."""
    index, _, name = device.partition(" ")
    return [index, *textwrap.wrap(name, width)]
