"""summary.md: the report as GitHub Markdown, made for a step summary or an issue."""

import re
from collections.abc import Iterable, Iterator

from tunecheck.core.text import one_line
from tunecheck.report.view import REMARKS, Failure, RunView, SessionView, session_view
from tunecheck.results import Report
from tunecheck.results.comparison import SideBySide

SUMMARY_FILE = "summary.md"
SIZE_LIMIT_BYTES = 60_000
"""GitHub refuses comments over 65,536 characters; a step summary may hold more, but nobody reads more."""
_CUT_NOTE = "\n*Cut here to stay readable: everything is in verdict.json.*\n"

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|~&$#])")


def summary_markdown(report: Report) -> str:
    """Return the content of summary.md, under 60 kB: whole lines, with a note where the rest was cut."""
    room = SIZE_LIMIT_BYTES - len(_CUT_NOTE.encode())
    kept: list[str] = []
    for line in _lines(session_view(report)):
        room -= len(line.encode(errors="backslashreplace")) + 1
        if room < 0:
            return "\n".join(kept) + "\n" + _CUT_NOTE
        kept.append(line)
    return "\n".join(kept) + "\n"


def escaped(text: str) -> str:
    """Return the text as one line that Markdown shows as it is, inside a table too."""
    return _SPECIAL.sub(r"\\\1", one_line(text))


def _lines(view: SessionView) -> Iterator[str]:
    yield f"## tunecheck: {view.headline}"
    yield from _table(view.table)
    for comparison in view.side_by_side:
        yield from ("", *comparison_markdown(comparison))
    yield from _section("Failed", (line for run in view.runs for line in _failures(run)))
    yield from _section("Compared to the baseline", (f"- **{escaped(t)}**: {escaped(s)}" for _, t, s in view.figures))
    yield from _section("Suspected", (line for told in view.suspicions for line in _failure(told)))
    yield from _section("Not judged", (line for run in view.runs for line in _unjudged(run)))
    for kind in REMARKS:
        yield from _section(kind, (_item(run.name, text) for run in view.runs for text in run.remarks[kind]))
    skipped = (run for run in view.table if run.outcome == "skipped")
    yield from _section("Skipped", (_item(run.name, run.reason) for run in skipped))
    yield from _section("Previous sessions", (f"- {escaped(line)}" for line in view.history))
    yield from ("", f"Environment: {escaped(view.environment)}")
    yield from ("", f"Started {escaped(view.report.started_at)}, took {view.seconds}.")


def comparison_markdown(comparison: SideBySide) -> Iterator[str]:
    """Yield the comparison's title as a heading, its ranking, table and notes, a line each."""
    yield from (f"### {escaped(comparison.title)}", "", f"{comparison.ranking.capitalize()}.", "")
    yield from (f"| {' | '.join(comparison.heads)} |", f"|{'---|' * len(comparison.heads)}")
    for row in comparison.rows:
        yield f"| {' | '.join(map(escaped, row))} |"
    if comparison.notes:
        yield from ("", *(f"- {escaped(note)}" for note in comparison.notes))


def _table(runs: Iterable[RunView]) -> Iterator[str]:
    heads = ("run", "outcome", "device", "precision", "passed", "failed", "unjudged", "training loss", "probe loss")
    rule = "|---|---|---|---|--:|--:|--:|---|---|--:|--:|--:|"
    for place, run in enumerate(runs):
        if place == 0:
            yield from ("", f"| {' | '.join((*heads, 'peak memory', 'tokens/s', 'time'))} |", rule)
        cells = [run.name, run.outcome, run.run.device, run.run.precision, *map(str, run.counts)]
        cells += [run.training_loss, run.probe_loss, run.peak, run.tokens_per_second, run.seconds]
        yield f"| {' | '.join(map(escaped, cells))} |"


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines under a heading; nothing at all when there are none."""
    for place, line in enumerate(lines):
        if place == 0:
            yield from ("", f"### {title}", "")
        yield line


def _failures(run: RunView) -> Iterator[str]:
    if run.outcome == "fail" and run.reason:
        yield _item(run.name, run.reason)
    for failure in run.failures:
        yield from _failure(failure)


def _failure(failure: Failure) -> Iterator[str]:
    yield f"- **{escaped(failure.run)}: {escaped(failure.check)}**"
    yield from (f"  - {label}: {escaped(text)}" for label, text in failure.rows)


def _unjudged(run: RunView) -> Iterator[str]:
    if run.outcome in ("error", "inconclusive") and run.reason:
        yield _item(run.name, run.reason)
    for expected in (False, True):
        for group in run.folded(expected=expected):
            yield _item(run.name, f"{group.names}: {group.reason}{' (as expected)' if expected else ''}")


def _item(name: str, text: str) -> str:
    return f"- {escaped(name)}: {escaped(text)}"
