"""junit.xml: a test suite for every run, a test case for every finding, for CI services that read nothing else."""

from collections.abc import Iterator, Mapping
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from tunecheck.core.finding import Finding, Status
from tunecheck.core.text import facts, printable
from tunecheck.report.view import RunView, failure, session_view
from tunecheck.results import Report, RunReport

JUNIT_FILE = "junit.xml"

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
    for name, value in _properties(run, report):
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


def _properties(run: RunReport, report: Report) -> Iterator[tuple[str, str]]:
    values = {name: getattr(run, name) for name in _OF_A_RUN}
    values |= {"loss_start": run.probe_loss_start, "loss_end": run.probe_loss_end}
    yield from facts(values)
    yield "tunecheck_version", report.tunecheck_version
    versions = report.environment.get("versions")
    if isinstance(versions, Mapping):
        yield from facts(versions, "version.")


def _count(suite: Element, seconds: float) -> None:
    suite.set("tests", str(len(list(suite.iter("testcase")))))
    for attribute, element in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(len(list(suite.iter(element)))))
    suite.set("time", f"{seconds:.3f}")
