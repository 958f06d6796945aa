"""What GitHub Actions shows of a session: its step summary, and an annotation for each failure."""

from collections.abc import Iterator, Mapping

from tunecheck.core.errors import SuiteError
from tunecheck.core.text import one_line
from tunecheck.report.summary import summary_markdown
from tunecheck.report.view import SessionView, session_view
from tunecheck.results import Report

MOST_ANNOTATIONS = 10
"""GitHub shows ten errors and ten warnings of a step and silently drops the others."""


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
    heads = [_data(one_line(head)).replace(":", "%3A").replace(",", "%2C") for head, _ in troubles]
    lines = [f"::{level} title={head}::{_data(text)}" for head, (_, text) in zip(heads, troubles, strict=True)]
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


def _data(text: str) -> str:
    """Escape a command's message as actions/toolkit's core package does; a property's `:` and `,` besides."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
