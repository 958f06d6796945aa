"""The rows of a session's report, gathered while it runs: from its own traces, and from what its workers tell."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from suite.core.errors import SuiteError, TraceError
from suite.core.finding import Finding
from suite.core.text import human_seconds
from suite.core.trace import Trace, read
from suite.results import RunReport, errored, outcome_words, summarize
from suite.results.entry import Entry, waiting
from suite.results.words import retries

if TYPE_CHECKING:
    from suite.config.schema import Run


class Rows:
    """What is known of each run of a session, by the run's name.

    Training leaves a trace in the folder, whoever did it. What leaves none (a refusal, an error before training, the
    seconds that a run took) goes from a worker to the session that it works for as plain data: `news`, then `hear`.
    """

    def __init__(self, *, folder: Path, refused: Literal["skipped", "fail"]) -> None:
        """`refused` is the outcome of a run that this machine is too small for; "fail" comes with --require-gpu."""
        self._folder, self._refused = folder, refused
        self._findings: dict[str, list[Finding]] = {}
        self._seconds: dict[str, float] = {}
        self._without_trace: dict[str, RunReport] = {}
        self._lost: dict[str, str] = {}

    def add(self, run_name: str, finding: Finding) -> None:
        """Keep a check's answer."""
        self._findings.setdefault(run_name, []).append(finding)

    def time(self, run_name: str, seconds: float) -> None:
        """Keep the wall time of a run with all its attempts."""
        self._seconds[run_name] = seconds

    def refuse(self, run: Run, reason: str) -> None:
        """This machine is too small for the run."""
        self._without_trace[run.name] = RunReport(
            run=run.id,
            tier=run.tier,
            model=run.model.name,
            outcome=self._refused,
            reason=reason,
            entry=waiting(run.comparison, run.entry),
        )

    def give_up(self, run: Run, reason: str, *, seconds: float) -> None:
        """The run could not begin."""
        row = errored(run.id, run.tier, run.model.name, reason, seconds=seconds)
        self._without_trace[run.name] = dataclasses.replace(row, entry=waiting(run.comparison, run.entry))

    def lose(self, run_name: str, worker: str) -> None:
        """The worker that carried this run out is gone, and nobody repeats it: it can at best be judged bad."""
        self._lost[run_name] = f"its worker {worker} ended before it was done with this run, which is not repeated"

    def news(self, run_name: str) -> dict[str, Any] | None:
        """What another process cannot read from the trace, as plain data; None when this run was not reached here."""
        if run_name not in self._seconds:
            return None
        row = self._without_trace.get(run_name)
        return {
            "run": run_name,
            "seconds": self._seconds[run_name],
            "row": row and {name: getattr(row, name) for name in ("run", "tier", "model", "outcome", "reason")},
            "entry": row and row.entry and dataclasses.asdict(row.entry),
        }

    def hear(self, news: dict[str, Any]) -> str | None:
        """Keep what a worker tells; returns a line for the terminal at the first time, None when it is known."""
        name = news["run"]
        if name in self._seconds:
            return None
        self._seconds[name] = news["seconds"]
        if news["row"]:
            entry = Entry(**news["entry"]) if news["entry"] else None
            self._without_trace[name] = RunReport(**news["row"], entry=entry)
            return f"{name}: {news['row']['outcome']}: {news['row']['reason']}"
        return f"{name}: {self._how_it_went(name)}, {human_seconds(news['seconds'])}"

    def all(self) -> list[RunReport]:
        """A row a run: those with a trace in the order in which they began, then the others."""
        rows = {row.name: row for row in self._with_trace()}
        others = [row for name, row in self._without_trace.items() if name not in rows]
        gone = [
            errored(name.partition("/")[2], name.partition("/")[0], "", reason)
            for name, reason in self._lost.items()
            if name not in rows and name not in self._without_trace
        ]
        return [*rows.values(), *others, *gone]

    def _with_trace(self) -> list[RunReport]:
        traces: list[tuple[Trace, Path]] = []
        for path in sorted(self._folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime):
            try:
                traces.append((read(path), path))
            except TraceError as error:
                tier, _, run = path.stem.partition("-")
                self._without_trace.setdefault(f"{tier}/{run}", errored(run, tier, "", str(error)))
        traces.sort(key=lambda pair: pair[0].header.started_at)
        return [self._row(trace, path) for trace, path in traces]

    def _row(self, trace: Trace, path: Path) -> RunReport:
        name = trace.run.name
        told = sum(attempt.end.seconds for attempt in trace.attempts if attempt.end)
        seconds = self._seconds.get(name, told)
        row = summarize(trace, self._findings.get(name, []), trace_file=path.name, seconds=seconds)
        if name in self._lost and row.outcome != "fail":
            return dataclasses.replace(row, outcome="error", reason=self._lost[name])
        if self._refused == "fail" and row.outcome == "pass" and retries(row) and row.device.startswith("cpu"):
            # a nightly run on a GPU must not be green because a CPU did its work
            reason = f"--require-gpu, and the training {'; '.join(retries(row))}"
            return dataclasses.replace(row, outcome="fail", reason=reason)
        return row

    def _how_it_went(self, name: str) -> str:
        """The end of the run's last training attempt and where that was, read from its trace."""
        try:
            trace = read(self._folder / f"{name.replace('/', '-')}.jsonl")
            main = trace.main
        except SuiteError as error:
            return str(error)
        words = outcome_words(main.outcome)
        return f"{words} on {main.start.device}{f' ({main.start.card})' if main.start.card else ''}"
