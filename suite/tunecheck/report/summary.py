"""What GitHub shows of a session: summary.md, for a step summary or an issue, and an annotation for each failure."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tunecheck.core.errors import SuiteError
from tunecheck.core.text import one_line
from tunecheck.report.view import REMARKS, Failure, RunView, SessionView, session_view
from tunecheck.results import Report
from tunecheck.results.comparison import SideBySide

SUMMARY_FILE = "summary.md"
SIZE_LIMIT_BYTES = 60_000
"""GitHub refuses comments over 65,536 characters; a step summary may hold more, but nobody reads more."""
MOST_ANNOTATIONS = 10
"""GitHub shows ten errors and ten warnings of a step and silently drops the others."""
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
    yield f"## tunecheck: {view.report.headline}"
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


def _table(runs: Sequence[RunView]) -> Iterator[str]:
    heads = ("run", "outcome", "device", "precision", "passed", "failed", "unjudged", "training loss", "probe loss")
    rule = "|---|---|---|---|--:|--:|--:|---|---|--:|--:|--:|"
    if runs:
        yield from ("", f"| {' | '.join((*heads, 'peak memory', 'tokens/s', 'time'))} |", rule)
    for run in runs:
        cells = [run.name, run.outcome, run.run.device, run.run.precision, *map(str, run.counts)]
        cells += [run.training_loss, run.probe_loss, run.peak, run.tokens_per_second, run.seconds]
        yield f"| {' | '.join(map(escaped, cells))} |"


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines under a heading; nothing at all when there are none."""
    if held := [*lines]:
        yield from ("", f"### {title}", "", *held)


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


def append_summary(report: Report, environment: Mapping[str, str]) -> None:
    """Append this report's summary to the step's; do nothing where $GITHUB_STEP_SUMMARY is not set.

    A report has 60 kB at most and a step's summary 1 MiB. Raises SuiteError when the file cannot be written.
    """
    if not (path := environment.get("GITHUB_STEP_SUMMARY")):
        return
    try:
        with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{summary_markdown(report)}\n")
    except OSError as error:
        raise SuiteError(
            f"$GITHUB_STEP_SUMMARY: {path} cannot be written ({error.strerror or error}); the same text is in "
            "summary.md of the session's folder"
        ) from error


def workflow_commands(report: Report, environment: Mapping[str, str]) -> list[str]:
    """Return workflow commands for failed, unjudged and suspected checks, a line each; none outside GitHub Actions."""
    if environment.get("GITHUB_ACTIONS") != "true":
        return []
    view = session_view(report)
    warnings = [(f"{found.run}: {found.check}, suspected", "\n".join(found.lines)) for found in view.suspicions]
    warnings += [(title, one_line(sentence)) for status, title, sentence in view.figures if status == "worse"]
    return [*_commands("error", list(_troubles(view))), *_commands("warning", warnings)]


def _commands(level: str, troubles: list[tuple[str, str]]) -> list[str]:
    heads = [_command_text(one_line(head)).replace(":", "%3A").replace(",", "%2C") for head, _ in troubles]
    lines = [f"::{level} title={head}::{_command_text(text)}" for head, (_, text) in zip(heads, troubles, strict=True)]
    if len(lines) > MOST_ANNOTATIONS:
        rest = len(lines) - MOST_ANNOTATIONS + 1
        lines[MOST_ANNOTATIONS - 1 :] = [f"::{level} title=tunecheck::{rest} more: see the summary of this step"]
    return lines


def _troubles(view: SessionView) -> Iterator[tuple[str, str]]:
    """Yield failed checks first, since room is short; then runs without a judgement."""
    for failure in view.failures:
        yield f"{failure.run}: {failure.check}", "\n".join(failure.lines)
    for run in view.runs:
        if run.outcome in ("fail", "error", "inconclusive") and not run.failures:
            yield f"{run.name}: {run.outcome}", one_line(run.reason or run.run.reason)


def _command_text(text: str) -> str:
    """Escape a command's message as actions/toolkit's core package does; a property's `:` and `,` besides."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
