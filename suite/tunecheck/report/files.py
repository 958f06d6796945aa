"""What a session leaves for other programs: junit.xml, results.sarif, summary.md, and the annotations of GitHub.

junit.xml has a test suite for every run and a test case for every finding. results.sarif has failed checks as results
of an analysis (SARIF 2.1.0), which code scanning shows beside the code. summary.md is for a step summary or an issue.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from tunecheck.checks import CHECKS
from tunecheck.core.errors import SuiteError
from tunecheck.core.finding import Finding, Place, Status
from tunecheck.core.text import facts, one_line, printable
from tunecheck.report.view import REMARKS, Failure, RunView, SessionView, check_page, failure, rule, session_view
from tunecheck.results import Report
from tunecheck.results.comparison import SideBySide

# junit.xml

_OF_A_RUN = (
    *("outcome", "model", "device", "precision", "weights", "data", "data_instead_of", "fingerprint"),
    *("peak_bytes", "peak_kind", "tokens_per_second", "trace_file"),
)
"""What of a run's row becomes a property of its suite."""


def junit_xml(report: Report) -> str:
    """Return the content of junit.xml. Without a pass it holds at least one failure, error or skipped test case."""
    root = Element("testsuites", {"name": "tunecheck"})
    for run in session_view(report).runs:
        _add_run(root, run, report)
    trouble = "" if report.runs else "no run was made"
    if report.interrupted:
        trouble = "the session was interrupted: what is missing here was not run"
    if trouble:  # that no run can show
        suite = SubElement(root, "testsuite", {"name": "session", "timestamp": printable(report.started_at)})
        _add_case(suite, "session", "session", 0.0, ("error", trouble, ""))
        _count(suite, 0.0)
    _count(root, report.seconds)
    ElementTree.indent(root)
    written: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return written.decode() + "\n"


def _add_run(root: Element, view: RunView, report: Report) -> None:
    run = view.run
    suite = SubElement(root, "testsuite", {"name": printable(run.name), "timestamp": printable(report.started_at)})
    properties = SubElement(suite, "properties")
    held = {**{name: getattr(run, name) for name in _OF_A_RUN}, "loss_start": run.probe_loss_start}
    held |= {"loss_end": run.probe_loss_end, "tunecheck_version": report.tunecheck_version}
    held["version"] = report.environment.get("versions") or {}
    for name, value in facts(held):
        SubElement(properties, "property", {"name": printable(name), "value": printable(value)})
    classname = f"{run.tier}.{run.run}"
    # one test case stands for the run itself: its seconds, and what kept it from being judged
    _add_case(suite, classname, "run", run.seconds, _run_trouble(view))
    for finding in run.findings:
        _add_case(suite, classname, finding.check, 0.0, _finding_trouble(run.name, finding))
    _count(suite, run.seconds)


def _add_case(suite: Element, classname: str, name: str, seconds: float, trouble: tuple[str, str, str] | None) -> None:
    attributes = {"classname": printable(classname), "name": printable(name), "time": f"{seconds:.3f}"}
    case = SubElement(suite, "testcase", attributes)
    if trouble is not None:
        kind, message, text = trouble
        SubElement(case, kind, {"message": printable(message)}).text = printable(text or message)


def _run_trouble(view: RunView) -> tuple[str, str, str] | None:
    """Return element, message and text for what the run's findings do not show; None when they show it all."""
    if view.outcome == "skipped":
        return "skipped", view.run.reason, ""
    if view.failed_without_check:
        return "failure", view.run.reason, ""
    return ("error", view.reason, "") if view.reason else None


def _finding_trouble(run_name: str, finding: Finding) -> tuple[str, str, str] | None:
    if finding.status is Status.PASSED:
        return None
    if finding.status is Status.UNJUDGED:
        return "skipped" if finding.expected else "error", finding.detail, ""
    failed = failure(run_name, finding)
    if finding.status in (Status.SUSPECTED, Status.IGNORED):
        return "skipped", f"{finding.status}: {failed.summary}", ""
    return "failure", failed.summary, "\n".join(failed.lines)


def _count(suite: Element, seconds: float) -> None:
    suite.set("tests", str(len(list(suite.iter("testcase")))))
    for attribute, element in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(len(list(suite.iter(element)))))
    suite.set("time", f"{seconds:.3f}")


# results.sarif

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(report: Report) -> str:
    """Return the session as a SARIF log: a rule for each check that did not pass, a result for each time it did not."""
    views = session_view(report).runs
    found = [  # failures, and what should have been judged
        (view, finding)
        for view in views
        for finding in (*view.run.failed, *view.run.suspected, *view.run.unjudged)
        if not finding.expected
    ]
    rules = list(dict.fromkeys(finding.check for _, finding in found))
    driver = {"name": "tunecheck", "version": report.tunecheck_version, "rules": [_rule(name) for name in rules]}
    troubles = [f"{view.name}: {view.reason}" for view in views if view.reason]  # runs that could not be judged
    invocation = {
        "executionSuccessful": not report.interrupted and report.verdict != "inconclusive",
        "commandLine": report.command,
        "toolExecutionNotifications": [{"level": "warning", "message": {"text": trouble}} for trouble in troubles],
    }
    log = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "invocations": [invocation],
                "results": [_result(view, finding, rules.index(finding.check)) for view, finding in found],
            }
        ],
    }
    return json.dumps(log, indent=2, ensure_ascii=False) + "\n"


def _rule(name: str) -> dict[str, Any]:
    if (check := CHECKS.get(name)) is None:
        return {"id": name}
    return {
        "id": name,
        "shortDescription": {"text": rule(name)},
        "fullDescription": {"text": f"A failure usually means: {check.meaning}"},
        "help": {"text": f"{check.remedy} More: tunecheck explain {name}", "markdown": check_page(name)},
        "defaultConfiguration": {"level": "error"},
    }


def _result(view: RunView, finding: Finding, index: int) -> dict[str, Any]:
    level = {Status.FAILED: "error", Status.SUSPECTED: "warning"}.get(finding.status)
    rows = failure(view.name, finding).rows if level else (("unjudged", finding.detail),)
    text = "\n".join([f"{view.name}: {finding.check}", *(f"{label}: {words}" for label, words in rows)])
    places = finding.places or _configured(view.name)
    return {
        "ruleId": finding.check,
        "ruleIndex": index,
        **({"level": level} if level else {"kind": "open", "level": "none"}),
        "message": {"text": text},
        "locations": [_location(place) for place in places[:1]],
        "relatedLocations": [{"id": number, **_location(place)} for number, place in enumerate(places[1:], start=1)],
        "partialFingerprints": {"runAndCheck/v1": hashlib.sha256(f"{view.name} {finding.check}".encode()).hexdigest()},
    }


@cache  # finding a run reads all runs' files
def _configured(name: str) -> tuple[Place, ...]:
    from tunecheck.config import find_run

    try:
        return (Place(what=name, file=str(find_run(name).path), line=1),)
    except SuiteError:
        return ()


def _location(place: Place) -> dict[str, Any]:
    here = Path.cwd()
    path = here / place.file
    artifact = {"uri": path.as_uri()}
    if path.is_relative_to(here):
        artifact = {"uri": quote(path.relative_to(here).as_posix()), "uriBaseId": "%SRCROOT%"}
    physical = {"artifactLocation": artifact, "region": {"startLine": place.line}}
    return {"physicalLocation": physical, "message": {"text": place.what}}


# GitHub

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
    yield from (f"| {' | '.join(map(escaped, row))} |" for row in comparison.rows)
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
    if held := [*lines]:
        yield from ("", f"### {title}", "", *held)


def _failures(run: RunView) -> Iterator[str]:
    if run.outcome == "fail" and run.reason:
        yield _item(run.name, run.reason)
    for told in run.failures:
        yield from _failure(told)


def _failure(told: Failure) -> Iterator[str]:
    yield f"- **{escaped(told.run)}: {escaped(told.check)}**"
    yield from (f"  - {label}: {escaped(text)}" for label, text in told.rows)


def _unjudged(run: RunView) -> Iterator[str]:
    if run.outcome in ("error", "inconclusive") and run.reason:
        yield _item(run.name, run.reason)
    for expected in (False, True):
        for group in run.folded(expected=expected):
            yield _item(run.name, f"{group.names}: {group.reason}{' (as expected)' if expected else ''}")


def _item(name: str, text: str) -> str:
    return f"- {escaped(name)}: {escaped(text)}"


def append_summary(report: Report, environment: Mapping[str, str]) -> None:
    """Append this report's summary to the step's, where $GITHUB_STEP_SUMMARY names its file. Raises SuiteError."""
    if not (path := environment.get("GITHUB_STEP_SUMMARY")):
        return
    try:
        with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{summary_markdown(report)}\n")
    except OSError as error:
        why = f"{path} cannot be written ({error.strerror or error})"
        remedy = "the same text is in summary.md of the session's folder"
        raise SuiteError(f"$GITHUB_STEP_SUMMARY: {why}; {remedy}") from error


def workflow_commands(report: Report, environment: Mapping[str, str]) -> list[str]:
    """Return workflow commands for failed, unjudged and suspected checks, a line each; none outside GitHub Actions."""
    if environment.get("GITHUB_ACTIONS") != "true":
        return []
    view = session_view(report)
    errors = [(f"{told.run}: {told.check}", "\n".join(told.lines)) for told in view.failures]  # first: room is short
    lost = [run for run in view.runs if run.outcome in ("fail", "error", "inconclusive") and not run.failures]
    errors += [(f"{run.name}: {run.outcome}", one_line(run.reason or run.run.reason)) for run in lost]
    warnings = [(f"{found.run}: {found.check}, suspected", "\n".join(found.lines)) for found in view.suspicions]
    warnings += [(title, one_line(sentence)) for status, title, sentence in view.figures if status == "worse"]
    return [*_commands("error", errors), *_commands("warning", warnings)]


def _commands(level: str, troubles: list[tuple[str, str]]) -> list[str]:
    heads = [_command_text(one_line(head)).replace(":", "%3A").replace(",", "%2C") for head, _ in troubles]
    lines = [f"::{level} title={head}::{_command_text(text)}" for head, (_, text) in zip(heads, troubles, strict=True)]
    if len(lines) > MOST_ANNOTATIONS:
        rest = len(lines) - MOST_ANNOTATIONS + 1
        lines[MOST_ANNOTATIONS - 1 :] = [f"::{level} title=tunecheck::{rest} more: see the summary of this step"]
    return lines


def _command_text(text: str) -> str:
    """Escape a command's message as actions/toolkit's core package does; a property's `:` and `,` besides."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


FILES: dict[str, Callable[[Report], str]] = {
    "junit.xml": junit_xml,
    "results.sarif": sarif,
    "summary.md": summary_markdown,
}
"""Name of each file in a session's folder to what makes its content."""
