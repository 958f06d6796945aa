"""results.sarif: failed checks as results of an analysis (SARIF 2.1.0), which code scanning shows beside the code."""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tunecheck.checks import CHECKS
from tunecheck.config import find_run
from tunecheck.core.errors import SuiteError
from tunecheck.core.finding import Finding, Place, Status
from tunecheck.report.view import RunView, check_page, failure, rule, session_view
from tunecheck.results import Report

SARIF_FILE = "results.sarif"
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
    return {
        "physicalLocation": {"artifactLocation": artifact, "region": {"startLine": place.line}},
        "message": {"text": place.what},
    }
