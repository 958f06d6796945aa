"""junit.xml: a test suite for every run, a test case for every finding, for the CI services that read nothing else."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from suite.core.files import write_whole
from suite.core.finding import Finding, Status
from suite.core.text import facts, human_number, printable
from suite.results import Report, RunReport
from suite.results.words import domain_words, untold

JUNIT_FILE = "junit.xml"
RUN_CASE = "run"
"""Name of the test case that stands for the run itself: its seconds, and what kept it from being judged."""

_COUNTS = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def write_junit(report: Report, folder: Path) -> Path:
    """The folder holds junit.xml, whole; returns its path. Raises SuiteError when the folder cannot be written.

    A report whose verdict is not a pass holds at least one failure, error or skipped test case.
    """
    root = Element("testsuites", {"name": "tunecheck"})
    for run in report.runs:
        _add_run(root, run, report)
    if trouble := _session_trouble(report):
        suite = SubElement(root, "testsuite", {"name": "session", "timestamp": printable(report.started_at)})
        _add_case(suite, "session", "session", 0.0, ("error", trouble, ""))
        _count(suite, 0.0)
    _count(root, report.seconds)
    ElementTree.indent(root)
    written = io.BytesIO()
    ElementTree.ElementTree(root).write(written, encoding="utf-8", xml_declaration=True)
    path = folder / JUNIT_FILE
    write_whole(path, written.getvalue().decode() + "\n")
    return path


def _session_trouble(report: Report) -> str:
    """What is wrong with the session that no run can show."""
    if report.interrupted:
        return "the session was interrupted: what is missing here was not run"
    return "" if report.runs else "no run was made"


def _add_run(root: Element, run: RunReport, report: Report) -> None:
    suite = SubElement(root, "testsuite", {"name": printable(run.name), "timestamp": printable(report.started_at)})
    properties = SubElement(suite, "properties")
    for name, value in _properties(run, report):
        SubElement(properties, "property", {"name": printable(name), "value": printable(value)})
    classname = f"{run.tier}.{run.run}"
    _add_case(suite, classname, RUN_CASE, run.seconds, _run_trouble(run))
    for finding in run.findings:
        _add_case(suite, classname, finding.check, 0.0, _finding_trouble(finding))
    _count(suite, run.seconds)


def _add_case(suite: Element, classname: str, name: str, seconds: float, trouble: tuple[str, str, str] | None) -> None:
    attributes = {"classname": printable(classname), "name": printable(name), "time": f"{seconds:.3f}"}
    case = SubElement(suite, "testcase", attributes)
    if trouble is not None:
        kind, message, text = trouble
        SubElement(case, kind, {"message": printable(message)}).text = printable(text or message)


def _run_trouble(run: RunReport) -> tuple[str, str, str] | None:
    """Element, message and text for what the findings of the run do not show; None when they show it all."""
    if run.outcome == "skipped":
        return "skipped", run.reason, ""
    if run.outcome == "fail" and not run.failed:
        return "failure", run.reason, ""
    return ("error", untold(run), "") if untold(run) else None


def _finding_trouble(finding: Finding) -> tuple[str, str, str] | None:
    if finding.status is Status.PASSED:
        return None
    if finding.status is Status.UNJUDGED:
        return "skipped" if finding.expected else "error", finding.detail, ""
    message = f"measured {human_number(finding.measured)}, limit {human_number(finding.limit)}"
    lines = [message, finding.detail, f"usually means: {finding.meaning}", f"what to do: {finding.remedy}"]
    if domain := domain_words(finding):
        lines.append(f"domain: {domain}")
    return "failure", message, "\n".join(lines)


def _properties(run: RunReport, report: Report) -> Iterator[tuple[str, str]]:
    values = {
        "outcome": run.outcome,
        "model": run.model,
        "device": run.device,
        "weights": run.weights,
        "data": run.data,
        "data_instead_of": run.data_instead_of,
        "fingerprint": run.fingerprint,
        "loss_start": run.probe_loss_start,
        "loss_end": run.probe_loss_end,
        "peak_bytes": run.peak_bytes,
        "peak_kind": run.peak_kind,
        "tokens_per_second": run.tokens_per_second,
        "trace_file": run.trace_file,
        "tunecheck_version": report.tunecheck_version,
    }
    yield from facts(values)
    versions = report.environment.get("versions")
    if isinstance(versions, Mapping):
        yield from facts(versions, "version.")


def _count(suite: Element, seconds: float) -> None:
    suite.set("tests", str(len(list(suite.iter("testcase")))))
    for attribute, element in _COUNTS.items():
        suite.set(attribute, str(len(list(suite.iter(element)))))
    suite.set("time", f"{seconds:.3f}")
