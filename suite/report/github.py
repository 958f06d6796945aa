"""What GitHub Actions shows of a session: its step summary, and an annotation for each failure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from suite.core.errors import SuiteError
from suite.core.text import human_number, one_line
from suite.report.history import title, told
from suite.report.summary import summary_markdown
from suite.results import Report
from suite.results.words import untold

MOST_ANNOTATIONS = 10
"""GitHub shows ten errors and ten warnings of a step and silently drops the others."""


def append_summary(report: Report, environment: Mapping[str, str]) -> None:
    """The step's summary ends with this report's; nothing happens where $GITHUB_STEP_SUMMARY is not set.

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
    """Workflow commands, a line each: errors for what failed or could not be judged, warnings for regressions.

    None where no workflow reads them.
    """
    if environment.get("GITHUB_ACTIONS") != "true":
        return []
    return [*_commands("error", list(_troubles(report))), *_commands("warning", list(_regressions(report)))]


def _commands(level: str, troubles: list[tuple[str, str]]) -> list[str]:
    lines = [f"::{level} title={_property(head)}::{_data(text)}" for head, text in troubles]
    if len(lines) > MOST_ANNOTATIONS:
        rest = len(lines) - MOST_ANNOTATIONS + 1
        lines[MOST_ANNOTATIONS - 1 :] = [f"::{level} title=tunecheck::{rest} more: see the summary of this step"]
    return lines


def _regressions(report: Report) -> Iterator[tuple[str, str]]:
    for standing in report.regressions:
        yield f"{standing.run}: {title(standing)} is worse than the baseline", one_line(told(standing))


def _troubles(report: Report) -> Iterator[tuple[str, str]]:
    """Failed checks first, since room is short; then runs without a judgement."""
    for run in report.runs:
        for finding in run.failed:
            numbers = f"measured {human_number(finding.measured)}, limit {human_number(finding.limit)}"
            told = [numbers, finding.detail, f"usually means: {finding.meaning}", f"what to do: {finding.remedy}"]
            yield f"{run.name}: {finding.check}", "\n".join(one_line(line) for line in told if line)
    for run in report.runs:
        if run.outcome in ("fail", "error", "inconclusive") and not run.failed:
            yield f"{run.name}: {run.outcome}", one_line(untold(run) or run.reason)


def _data(text: str) -> str:
    """As actions/toolkit's core package escapes a command's message."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """As actions/toolkit's core package escapes a command's properties."""
    return _data(one_line(text)).replace(":", "%3A").replace(",", "%2C")
