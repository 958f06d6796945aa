"""The rows of a session's report, gathered while it runs from its traces and from its workers."""

import contextlib
import dataclasses
from pathlib import Path
from typing import Any, Literal

from tunecheck.config.schema import Run
from tunecheck.core.errors import TraceError
from tunecheck.core.evidence import AttemptOutcome, AttemptPurpose, AttemptReason, outcome_words
from tunecheck.core.finding import Domain, Finding
from tunecheck.core.text import human_seconds
from tunecheck.core.trace import Trace, read
from tunecheck.core.typed import build
from tunecheck.results import RunReport, Tried, summarize, waiting
from tunecheck.results.stored import plain


class Rows:
    """Results of each run of a session, by the run's name.

    A training leaves a trace in the folder, whichever process did it. What is not in it (findings, a skip, an error
    before the training, wall time) goes from a worker to the controlling session as plain data: `news`, then `merge`.
    """

    def __init__(self, *, folder: Path, too_small: Literal["skipped", "fail"]) -> None:
        """`too_small` is the outcome of a run that this machine cannot hold; "fail" comes with --require-gpu."""
        self._folder, self._too_small = folder, too_small
        self._findings: dict[str, dict[str, Finding]] = {}
        self._seconds: dict[str, float] = {}
        self._how: dict[str, str] = {}
        self._without_trace: dict[str, RunReport] = {}

    def add(self, run_name: str, finding: Finding) -> None:
        """Keep a finding; the last one of a check, which a plugin that repeats tests judges again."""
        self._findings.setdefault(run_name, {})[finding.check] = finding

    def time(self, run_name: str, seconds: float, trace: Trace | None = None) -> None:
        """Keep the wall time of a run with all its attempts, and how it went where it left a trace."""
        self._seconds[run_name] = seconds
        if trace is not None:
            card = f" ({trace.main.start.card})" if trace.main.start.card else ""
            self._how[run_name] = f"{outcome_words(trace.main.outcome)} on {trace.main.start.device}{card}"

    def end(
        self, run: Run, reason: str, domain: Domain | Literal[""], *, too_small: bool = False, seconds: float = 0.0
    ) -> None:
        """Record why the run could not begin, or its trace not be written to its end."""
        self._without_trace[run.name] = RunReport(
            run=run.id,
            tier=run.tier,
            model=run.model.name,
            outcome=self._too_small if too_small else "error",
            reason=reason,
            domain=domain,
            seconds=seconds,
            entry=waiting(run),
        )

    def refuse(self, run_name: str, reason: str) -> None:
        """Record that the run's file cannot be used; the others are trained."""
        purpose, outcome = AttemptPurpose.TRAIN, AttemptOutcome.MISCONFIGURED
        never = Tried(purpose=purpose, device="", outcome=outcome, reason=AttemptReason.REQUESTED, seconds=None)
        row = _error(run_name, reason, Domain.WORKLOAD)
        self._without_trace[run_name] = dataclasses.replace(row, attempts=(never,))

    def news(self, run_name: str) -> dict[str, Any] | None:
        """Return what the trace does not hold, as plain data for another process; None for a run not reached here."""
        if run_name not in self._seconds:
            return None
        row, findings = self._without_trace.get(run_name), self._findings.get(run_name, {})
        seconds, told = self._seconds[run_name], [plain(finding) for finding in findings.values()]
        how = self._how.get(run_name)
        return {"run": run_name, "seconds": seconds, "how": how, "row": row and plain(row), "findings": told}

    def merge(self, news: dict[str, Any]) -> str | None:
        """Keep a worker's news of a run. Return a line for the terminal; None for a run that is known already."""
        name = news["run"]
        for finding in news["findings"]:
            self.add(name, build(Finding, finding))
        if name in self._seconds:
            return None
        self._seconds[name] = news["seconds"]
        if news["row"]:
            row = self._without_trace[name] = build(RunReport, news["row"])
            return f"{name}: {row.outcome}: {row.reason}"
        return f"{name}: {news['how']}, {human_seconds(news['seconds'])}"

    def all(self) -> list[RunReport]:
        """Return a row for each run: those with a trace in the order in which they began, then the others."""
        traces, files = list[tuple[Trace, Path]](), list[Path]()
        with contextlib.suppress(OSError):  # of a folder that cannot be read there are none
            files = sorted(self._folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
        for path in files:
            try:
                traces.append((read(path), path))
            except TraceError as error:
                name = path.stem.replace("-", "/", 1)
                self._without_trace.setdefault(name, _error(name, str(error)))
        traces.sort(key=lambda pair: pair[0].header.started_at)
        rows = {trace.run.name: self._row(trace, path) for trace, path in traces}
        return [*rows.values(), *(row for name, row in self._without_trace.items() if name not in rows)]

    def _row(self, trace: Trace, path: Path) -> RunReport:
        name = trace.run.name
        seconds = self._seconds.get(name, sum(attempt.end.seconds for attempt in trace.attempts if attempt.end))
        row = summarize(trace, [*self._findings.get(name, {}).values()], trace_file=path.name, seconds=seconds)
        if (ended := self._without_trace.get(name)) and row.outcome != "fail":
            return dataclasses.replace(row, outcome=ended.outcome, reason=ended.reason, domain=ended.domain)
        if self._too_small == "fail" and row.outcome == "pass" and row.retries and row.device.startswith("cpu"):
            # a nightly run on a GPU must not be green because a CPU did its work
            reason = f"--require-gpu, and the training {'; '.join(row.retries)}"
            return dataclasses.replace(row, outcome="fail", reason=reason)
        return row


def _error(run_name: str, reason: str, domain: Domain | Literal[""] = "") -> RunReport:
    tier, _, run = run_name.partition("/")
    return RunReport(run=run, tier=tier, outcome="error", reason=reason, domain=domain)
