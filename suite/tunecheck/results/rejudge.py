"""Judge the traces of a session again, without training anything."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tunecheck.checks import asked_of
from tunecheck.checks.watched import JUDGED_BY
from tunecheck.config import with_limits
from tunecheck.core.check import Check
from tunecheck.core.errors import MissingEvidence, TraceError
from tunecheck.core.evidence import PremisesOpen
from tunecheck.core.files import listed
from tunecheck.core.finding import Status
from tunecheck.core.trace import Trace, read
from tunecheck.results import Report, RunReport, summarize, verdict_of
from tunecheck.results.stored import VERDICT_FILE, VERDICTS


def judged_again(trace: Trace, overrides: Sequence[str], *, trace_file: str) -> RunReport:
    """Return the run's row by its own checks, changed by `checks.NAME.LIMIT=VALUE`. Raises as `checks_of` does."""
    findings = [check(trace) for check in checks_of(trace, overrides, trace_file=trace_file).values()]
    for key, value in trace.run.expected.items():  # one that no check could judge lacks evidence
        asked = [at for at, finding in enumerate(findings) if finding.check in JUDGED_BY.get(key, ())]
        if asked and all(findings[at].status is Status.UNJUDGED for at in asked):
            detail = f"--expect {key}={value} could not be judged: {findings[asked[0]].detail}"
            findings[asked[0]] = replace(findings[asked[0]], detail=detail, expected=False)
    course = {why for told in trace.records(PremisesOpen) for why in told.reasons.values()}
    findings.sort(key=lambda finding: finding.detail not in course)  # read first: no declaration foretold it
    seconds = sum(attempt.end.seconds for attempt in trace.attempts if attempt.end)
    return summarize(trace, findings, trace_file=trace_file, seconds=seconds)


def checks_of(trace: Trace, overrides: Sequence[str], *, trace_file: str = "the trace") -> dict[str, Check]:
    """Return the run's checks with these overrides. Raises ConfigError for an unknown limit, TraceError for no run."""
    run, settings = trace.run, trace.settings
    try:
        if lacking := [key for key in ("id", "tier", "model", "training", "checks", "features") if key not in settings]:
            raise MissingEvidence(f"{', '.join(lacking)} missing")
        _ = run.model
    except MissingEvidence as error:  # as in a file that was edited or cut
        raise TraceError(f"{trace_file}: its header describes no run: {error}") from error
    return asked_of(run.features, with_limits(run.checks, overrides, run.features))


def session_report(folder: Path) -> Report:
    """Read the session's verdict.json; without one, as of a killed session, judge its traces again as interrupted.

    Raises TraceError for a folder that holds neither, and for a verdict that is damaged or of another schema.
    """
    if (folder / VERDICT_FILE).exists():
        return VERDICTS.read(folder / VERDICT_FILE)
    if not (files := listed(folder, "*.jsonl")):
        remedy = "name the folder of a session, such as reports/runs/<session>"
        raise TraceError(f"{folder}: holds neither {VERDICT_FILE} nor a trace (*.jsonl); {remedy}")
    traces: list[Trace] = []
    rows: list[RunReport] = []
    for path in files:
        try:
            traces.append(read(path))
            rows.append(judged_again(traces[-1], [], trace_file=path.name))
        except TraceError as error:
            tier, _, run = path.stem.partition("-")
            rows.append(RunReport(run=run, tier=tier, outcome="error", reason=str(error), trace_file=path.name))
    return report_on(traces, rows, interrupted=True)


def report_on(traces: Sequence[Trace], rows: Sequence[RunReport], *, interrupted: bool, command: str = "") -> Report:
    """Return the report with these rows of these traces, which may lack those that cannot be read."""
    return Report(
        started_at=min((trace.header.started_at for trace in traces), default=""),
        seconds=sum(row.seconds for row in rows),
        verdict=verdict_of(rows, interrupted),
        environment=traces[0].header.environment if traces else {},
        command=command,
        interrupted=interrupted,
        runs=tuple(rows),
    )
