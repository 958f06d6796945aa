"""Write and read verdict.json: the whole report for other programs."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from tunecheck.core.errors import TraceError
from tunecheck.core.files import write_whole
from tunecheck.core.finding import Finding
from tunecheck.core.machine import require_machine
from tunecheck.core.reading import read_json
from tunecheck.core.trace import spelled
from tunecheck.core.typed import MISFITS, build
from tunecheck.results import VERDICT_SCHEMA, Report

VERDICT_FILE = "verdict.json"
_ATTEMPT = ("purpose", "device", "outcome", "reason", "seconds")


def write_verdict(report: Report, folder: Path) -> Path:
    """Write verdict.json atomically and return its path. Raises SuiteError when the folder cannot be written."""
    path = folder / VERDICT_FILE
    write_whole(path, verdict_json(report))
    return path


def verdict_json(report: Report, indent: int | None = 1) -> str:
    """Return the content of verdict.json, a line without `indent`."""
    return json.dumps(verdict_payload(report), allow_nan=False, ensure_ascii=False, indent=indent) + "\n"


def verdict_payload(report: Report) -> dict[str, Any]:
    """Return the report as values of JSON. Non-finite numbers are text."""
    payload = dataclasses.asdict(report)
    for run, row in zip(report.runs, payload["runs"], strict=True):
        row["findings"] = [_finding_row(finding) for finding in run.findings]
    held: dict[str, Any] = spelled(payload)
    return held


def read_verdict(path: Path) -> Report:
    """Read a report. Raises TraceError for one that is unreadable, foreign, or of another schema."""
    try:
        payload = read_json(path)
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(payload, dict) or not {"schema", "verdict", "runs"} <= payload.keys():
        raise TraceError(f"{path}: not a verdict of tunecheck; name the {VERDICT_FILE} of a session's folder")
    if payload["schema"] != VERDICT_SCHEMA:
        raise TraceError(
            f"{path}: verdict schema {payload['schema']}, this tunecheck reads {VERDICT_SCHEMA}; read it with the "
            f"tunecheck that wrote it ({payload.get('tunecheck_version')}), or judge the traces beside it again"
        )
    try:
        return _report(payload)
    except MISFITS as error:
        raise TraceError(
            f"{path}: a damaged verdict ({type(error).__name__}: {error}); judge the traces beside it again"
        ) from error


def margin(finding: Finding) -> float | None:
    """Return (measured - limit) / |limit|; None unless both are finite numbers and the limit is not 0."""
    measured, limit = finding.measured, finding.limit
    if not isinstance(measured, int | float) or not isinstance(limit, int | float) or limit == 0:
        return None
    distance = (measured - limit) / abs(limit)
    return distance if math.isfinite(distance) and math.isfinite(limit) else None


def _finding_row(finding: Finding) -> dict[str, Any]:
    return {**dataclasses.asdict(finding), "margin": margin(finding)}


def _report(payload: dict[str, Any]) -> Report:
    report: Report = build(Report, {**payload, "runs": [_run(run) for run in payload["runs"]]})
    require_machine(report.environment)
    return report


def _run(payload: dict[str, Any]) -> dict[str, Any]:
    return {
        **payload,
        "attempts": [{name: attempt[name] for name in _ATTEMPT} for attempt in payload.get("attempts", ())],
        # The margin follows from its neighbours, so it is written for readers of the file and not read back.
        "findings": [
            {name: value for name, value in one.items() if name != "margin"} for one in payload.get("findings", ())
        ],
    }
