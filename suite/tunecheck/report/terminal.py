"""The report in a terminal: name, verdict and time of each run, failures with their causes, the verdict last."""

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from tunecheck.core.finding import Status
from tunecheck.core.text import one_line
from tunecheck.report.layout import PlainTable
from tunecheck.report.view import Failure, RunView, SessionView, run_view, session_view
from tunecheck.results import Report
from tunecheck.results.comparison import SideBySide

STYLES = {"pass": "green", "fail": "bold red", "inconclusive": "yellow", "error": "bold red", "skipped": "yellow"}
_OPEN = (Status.FAILED, Status.SUSPECTED)
_ASCII = str.maketrans({"→": "->", "—": "-", "…": "..."})


def print_report(report: Report, console: Console, *, failures: bool = True, so_far: bool = False) -> None:
    """Print the report, the verdict last. Data is not read as markup and sends no escape sequence.

    `failures` is False where pytest has printed them already; `so_far` marks the verdict of a session that goes on.
    """
    printer, view = _Printer(console), session_view(report)
    if any(run.run.findings or run.run.device for run in view.table):  # else a row has no more than its reason, below
        console.print(printer.table(view.table))
        console.print()
    for comparison in view.comparisons:
        printer.comparison(comparison)
    for run in view.table:
        for kind, sentences in run.remarks.items():
            for sentence in sentences if kind != "CPU contention" or run.run.too_busy else ():
                printer.block(f"{run.name}: {sentence}", "yellow")
        printer.reason(run)
    printer.judged((*(view.failures if failures else ()), *view.suspicions), view.runs)
    printer.history(view)
    printer.coverage(view)
    printer.verdict(view, "verdict so far" if so_far else "verdict")


def print_changes(report: Report, before: Report, console: Console) -> None:
    """Print what this report says and an earlier one of the session did not, and the verdict."""
    said = {(run.name, found.check, found.status) for run in before.runs for found in run.findings}
    printer, view, earlier = _Printer(console), session_view(report), session_view(before)
    for whole in view.runs:
        if whole.reason not in [run.reason for run in earlier.runs]:
            printer.reason(whole)
        news = [found for found in whole.run.findings if (whole.name, found.check, found.status) not in said]
        # a consequence of what was said before has nothing here to be folded into
        told = tuple(replace(f, because=f.because if f.because in [n.check for n in news] else "") for f in news)
        changed = run_view(replace(whole.run, findings=told))
        passed = [found.check for found in told if found.status is Status.PASSED]
        if mended := [check for check in passed if {(whole.name, check, status) for status in _OPEN} & said]:
            printer.block(f"{whole.name}: passed after all: {', '.join(mended)}", "green")
        printer.judged((*changed.failures, *changed.suspicions), [changed])
    if view.coverage != earlier.coverage:
        printer.coverage(view)
    printer.verdict(view)


def print_benchmark(report: Report, console: Console) -> None:
    """Print the trainers side by side, what failed or is unjudged in any turn, and the verdict last."""
    printer, view = _Printer(console), session_view(report)
    for benchmark in view.benchmarks:
        table = PlainTable(*benchmark.heads, right=slice(2, None))
        for row in benchmark.rows:
            table.add_row(*map(printer.text, row))
        printer.titled(benchmark, table)
    for run in view.runs:
        printer.reason(run)
    printer.judged((*view.failures, *view.suspicions), view.runs)
    printer.verdict(view)


class _Printer:
    """The parts of the report, fitted to one console's width and alphabet."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.ascii_only = console.options.ascii_only

    def text(self, data: str, style: str = "") -> Text:
        """Return one line of data as it is: no markup, no control characters, in the console's alphabet."""
        return self.laid_out(one_line(data), style)

    def laid_out(self, line: str, style: str = "") -> Text:
        """Return a line that is printable, with its spaces, in the console's alphabet."""
        if self.ascii_only:
            line = line.translate(_ASCII).encode("ascii", "replace").decode()
        return Text(line, style=style)

    def table(self, runs: Sequence[RunView]) -> PlainTable:
        """Return a row of a few lines for each run, within the console's width from 80 columns up."""
        cells = 20 if self.console.width >= 100 else 19  # of a curve
        fixed = 12 + 11 + 5  # the widest verdict and check count, and the gaps between six columns
        peak = max(len(text) for run in runs for text in ("peak", *run.peak.rsplit(" ", 1)))
        room = max(self.console.width - cells - peak - fixed, 20)
        device = min(max(len(run.run.device) for run in runs), room * 2 // 5)
        table = PlainTable("run", "verdict", "checks", "loss", "device", "peak", right=slice(5, None))
        table.columns[1].no_wrap = table.columns[5].no_wrap = True
        for run in runs:
            table.add_row(*self.row(run, name_width=room - device, device_width=max(device, 1), cells=cells))
        return table

    def row(self, run: RunView, *, name_width: int, device_width: int, cells: int) -> list[Text]:
        # The probe batch is fixed, the training loss scatters with its rows: of that the shape says more than the ends.
        probe, steps = run.probe_loss, run.training_loss
        ends = f"probe {probe}" if probe else f"steps {steps}" if steps else ""
        curve = "" if self.ascii_only else sparkline(run.run.losses, cells - len("steps "))
        tier, _, name = run.name.partition("/")  # broken where a reader would break it: after the tier, at hyphens
        names = [run.name] if len(run.name) <= name_width else [f"{tier}/", *textwrap.wrap(name, name_width)]
        index, _, card = run.run.device.partition(" ")
        return [
            self.lines(names),
            _joined([self.text(run.outcome, STYLES[run.outcome]), self.text(run.seconds)]),
            self.checks(run),
            _joined([self.text(ends), Text.assemble("steps ", self.text(curve, "cyan")) if curve else Text()]),
            self.lines([index, *textwrap.wrap(card, device_width), run.run.precision]),
            self.lines(run.peak.rsplit(" ", 1)),
        ]

    def lines(self, data: Sequence[str]) -> Text:
        return _joined([self.text(part) for part in data])

    def checks(self, run: RunView) -> Text:
        """Return the numbers of passed, failed, suspected and unjudged checks, those that are none left out."""
        passed, failed, unjudged = run.counts
        counted = ((failed, "failed", "bold red"), (len(run.suspicions), "suspected", "yellow"))
        told = ((passed, "passed", "green"), *counted, (unjudged, "unjudged", "dim"))
        return _joined([self.text(f"{count} {word}", style) for count, word, style in told if count])

    def comparison(self, comparison: SideBySide) -> None:
        """Print its table, a row of two lines for each run, and what its numbers mean."""
        heads = ("", "strategy, trained", "held-out perplexity", "training loss", "time, rows/s", "peak, device")
        table = PlainTable(*heads, right=slice(1))
        table.columns[1].min_width = len("last_layers_and_head")  # the longest strategy
        for column, width in zip(table.columns[2:5], (10, 8, 10), strict=True):
            column.max_width = width
        for place, name, trained, perplexity, loss, time, rate, peak, device in comparison.rows:
            cells = [[place], [name, trained], _halves(perplexity), _halves(loss), [time, rate], [peak, device]]
            table.add_row(*(self.lines(cell) for cell in cells))
        self.titled(comparison, table)

    def titled(self, compared: SideBySide, table: PlainTable) -> None:
        self.block(f"{compared.title}: {compared.ranking}", "bold", table)
        for note in compared.notes:
            self.console.print(self.text(note))
        if compared.notes:
            self.console.print()

    def reason(self, run: RunView) -> None:
        if run.reason:
            self.block(f"{run.name}: {run.outcome}: {run.reason}", STYLES[run.outcome])

    def judged(self, failures: Iterable[Failure], runs: Sequence[RunView]) -> None:
        """Print what failed or is suspected, then what these runs leave unjudged with the reason that checks share."""
        for failure in failures:
            self.failure(failure)
        for run in runs:
            for group in run.folded(expected=False):
                self.block(f"UNJUDGED {run.name}: {group.names}", "yellow", self.text(group.reason))

    def failure(self, failure: Failure) -> None:
        style = "bold yellow" if failure.status == "SUSPECTED" else "bold red"
        title, *lines = failure.block(self.console.width).splitlines()
        self.console.print(self.text(f"{failure.status} {title}", style))
        for line in lines:
            text = self.laid_out(line)
            text.stylize("dim", 0, failure.indent)
            self.console.print(text)
        self.console.print()

    def history(self, view: SessionView) -> None:
        """Print the figures that differ from their baseline, then what else previous sessions say."""
        for status, title, sentence in view.figures:
            self.block(title, "green" if status == "better" else "yellow", self.text(sentence))
        for line in view.history:
            self.console.print(self.text(line, "dim"))
        if view.history:
            self.console.print()

    def coverage(self, view: SessionView) -> None:
        """Print what was judged by subject, and in one line how much the runs themselves rule out."""
        judged = ", ".join(words.replace(" ", "\xa0") for words in view.coverage)  # kept with its count
        for line in textwrap.wrap(judged, max(self.console.width - 8, 20)):
            label = "judged: " if judged.startswith(line) else " " * 8
            self.console.print(self.laid_out(label + line.replace("\xa0", " "), "dim"))
        if view.unjudged_as_expected:
            self.console.print(self.text(view.unjudged_as_expected, "dim"))

    def verdict(self, view: SessionView, label: str = "verdict") -> None:
        """Print the verdict, never wrapped, so that the last line of a log is the whole of it."""
        self.console.print(self.text(f"{label}: {view.report.headline}", STYLES[view.report.verdict]), soft_wrap=True)

    def block(self, title: str, style: str, body: RenderableType | None = None) -> None:
        self.console.print(self.text(title, style))
        if body is not None:
            self.console.print(Padding.indent(body, 2))
        self.console.print()


def _joined(texts: list[Text]) -> Text:
    return Text("\n").join([text for text in texts if text])


def _halves(change: str) -> list[str]:
    before, arrow, after = change.partition(" → ")
    return [before, f"→ {after}" if arrow else ""]


LEVELS = "▁▂▃▄▅▆▇█"
BROKEN = "!"
"""Character of a value that is NaN or infinite."""


def sparkline(values: Sequence[float], cells: int = 20) -> str:
    """Return at most `cells` characters, the lowest value lowest; a constant curve is flat at half height.

    Longer curves are averaged cell by cell. A cell with a single non-finite value shows it: averages hide nothing.
    """
    cells = min(cells, len(values))
    edges = [round(cell * len(values) / cells) for cell in range(cells + 1)] if cells else []
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0) or 1.0  # else sums overflow
    means = [sum(value / largest for value in values[a:b]) / (b - a) for a, b in pairwise(edges)]
    finite = [mean for mean in means if math.isfinite(mean)] or [0.0]
    low, span = min(finite), max(finite) - min(finite)
    heights = ((mean - low) / span if span else mean - low + 0.4 for mean in means)
    return "".join(LEVELS[min(int(height * 8), 7)] if math.isfinite(height) else BROKEN for height in heights)
