"""One session of tiers: reads the machine once, trains each run once, and turns what was found into a report."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import suite
from suite.errors import SuiteError
from suite.finding import Finding
from suite.gate import no_gpu, obstacle
from suite.hardware.company import Company
from suite.paths import reports_folder
from suite.trace import Trace, read

if TYPE_CHECKING:
    from suite.config.schema import Run
    from suite.hardware import Hardware
    from suite.report import Report


SOME_COMPANY = 0.25
"""Cores busy with other processes from which on children wait politely."""


class TierSession:
    """Holds a session's traces, skips and findings until the report is written."""

    def __init__(
        self,
        *,
        command: str,
        require_gpu: bool = False,
        in_process: bool = False,
        say: Callable[[str], None] = print,
    ) -> None:
        self.command, self.require_gpu, self.in_process, self.say = command, require_gpu, in_process, say
        self._company = Company()
        self._started, self._clock = datetime.now(UTC), time.monotonic()
        self._traces: dict[str, tuple[Trace, str, float]] = {}
        self._skips: dict[str, tuple[Run, str]] = {}
        self._findings: dict[str, list[Finding]] = {}

    @cached_property
    def hardware(self) -> Hardware:
        """This machine, read once."""
        from suite.hardware import probe

        return probe()

    @cached_property
    def folder(self) -> Path:
        """Where this session's files go; a new name for each session."""
        return reports_folder() / f"{self._started:%Y%m%dT%H%M%SZ}-{os.getpid()}"

    def obstacle(self, run: Run) -> str | None:
        """Why this machine cannot carry the run out, remembered for the report; None when it can."""
        reason = obstacle(run, self.hardware)
        if reason is None and self.require_gpu and not self.hardware.visible_gpus:
            reason = f"is to run on a GPU (--require-gpu), but {no_gpu(self.hardware)}"
        if reason is not None:
            self._skips[run.name] = (run, reason)
        return reason

    def train(self, run: Run) -> Trace:
        """The run's trace, trained at the first call; crashes, hangs and missing weights are in the trace."""
        if run.name not in self._traces:
            from suite.runner import Runner

            runner = Runner(
                folder=self.folder,
                environment=self.hardware.to_json(),
                gpu=bool(self.hardware.visible_gpus),
                card=next(iter(self.hardware.visible or ()), None),
                say=self.say,
                in_process=self.in_process,
            )
            started = time.monotonic()
            try:
                runner.execute(run)
            finally:  # an interrupted run belongs into the report too
                file = self.folder / f"{run.stem}.jsonl"
                self._traces[run.name] = (read(file), file.name, time.monotonic() - started)
        return self._traces[run.name][0]

    def warm_up(self, runs: Iterable[Run]) -> None:
        """Let the training child's imports begin, if any of these runs will need one."""
        from suite.runner import wait_politely, warm_up

        if self._company.busy_cores() > SOME_COMPANY:
            wait_politely()
        if not self.in_process and any(obstacle(run, self.hardware) is None for run in runs):
            warm_up(gpu=bool(self.hardware.visible_gpus))

    def add(self, run_name: str, finding: Finding) -> None:
        """Keep a finding for the report."""
        self._findings.setdefault(run_name, []).append(finding)

    def close(self, *, interrupted: bool) -> Report | None:
        """Write the report's files and return it; None when no run was reached, and then nothing is written."""
        from suite.report import Report, RunReport, summarize, verdict_of
        from suite.runner import cool_down

        cool_down()
        runs = [
            summarize(trace, self._findings.get(name, []), trace_file=trace_file, seconds=seconds)
            for name, (trace, trace_file, seconds) in self._traces.items()
        ]
        runs += [
            RunReport(
                run=run.id,
                tier=run.tier,
                model=run.model.name,
                outcome="fail" if self.require_gpu else "skipped",
                reason=reason,
            )
            for run, reason in self._skips.values()
        ]
        if not runs:
            return None
        report = Report(
            tunecheck_version=suite.__version__,
            started_at=self._started.isoformat(timespec="seconds"),
            seconds=time.monotonic() - self._clock,
            verdict=verdict_of(runs, interrupted),
            environment=self.hardware.to_json(),
            command=self.command,
            interrupted=interrupted,
            runs=tuple(runs),
        )
        _write(report, self.folder)
        return report


def _write(report: Report, folder: Path) -> None:
    """Write the report's files; what cannot be written goes to standard error, so that no finished result is lost."""
    from suite.report.junit import write_junit
    from suite.report.summary import write_summary
    from suite.report.verdict import verdict_json, write_verdict

    try:
        write_verdict(report, folder)
        write_junit(report, folder)
        write_summary(report, folder)
    except SuiteError as error:
        print(f"tunecheck: {error}\nThe verdict would be lost otherwise:\n{verdict_json(report)}", file=sys.stderr)
