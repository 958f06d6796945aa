"""Write and read verdict.json: the whole report for other programs."""

import dataclasses
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

from tunecheck.core.errors import TraceError
from tunecheck.core.files import write_whole
from tunecheck.core.finding import Finding
from tunecheck.core.machine import require_machine
from tunecheck.core.trace import spelled
from tunecheck.core.typed import MISFITS
from tunecheck.results import VERDICT_SCHEMA, Report
from tunecheck.results.stored import Stored, json_text

VERDICT_FILE = "verdict.json"
_REMEDY = "judge the traces beside it again"
_VERDICT = Stored(
    Report,
    schema=VERDICT_SCHEMA,
    what=f"a verdict of tunecheck; name the {VERDICT_FILE} of a session's folder",
    remedy=_REMEDY,
)


def write_verdict(report: Report, folder: Path) -> Path:
    """Write verdict.json atomically and return its path. Raises SuiteError when the folder cannot be written."""
    path = folder / VERDICT_FILE
    write_whole(path, json_text(verdict_payload(report)))
    return path


def verdict_payload(report: Report) -> dict[str, Any]:
    """Return the report as values of JSON. Non-finite numbers are text."""
    payload = dataclasses.asdict(report)
    for run, row in zip(report.runs, payload["runs"], strict=True):
        for finding, held in zip(run.findings, row["findings"], strict=True):
            held["margin"] = margin(finding)
    values: dict[str, Any] = spelled(payload)
    return values


def read_verdict(path: Path) -> Report:
    """Read a report. Raises TraceError for one that is unreadable, foreign, or of another schema."""
    held = _VERDICT.loaded(path)
    with suppress(AttributeError, KeyError, TypeError):  # of a damaged one, which `built` refuses
        for row in held["runs"]:
            for finding in row["findings"]:
                finding.pop("margin", None)  # it follows from its neighbours, and is for other readers of the file
    report = _VERDICT.built(held, str(path))
    try:
        require_machine(report.environment)
    except MISFITS as error:
        raise TraceError(f"{path}: damaged ({type(error).__name__}: {error}); {_REMEDY}") from error
    return report


def margin(finding: Finding) -> float | None:
    """Return (measured - limit) / |limit|; None unless both are finite numbers and the limit is not 0."""
    measured, limit = finding.measured, finding.limit
    if not isinstance(measured, int | float) or not isinstance(limit, int | float) or limit == 0:
        return None
    distance = (measured - limit) / abs(limit)
    return distance if math.isfinite(distance) and math.isfinite(limit) else None
