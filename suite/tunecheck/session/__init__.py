"""A session: reads the machine once, trains each run once, and turns the findings into a report."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

from tunecheck.config.schema import Run
from tunecheck.core import fork_server
from tunecheck.core.errors import GpuUnusable, MachineTooSmall, SuiteError, TraceError
from tunecheck.core.files import write_whole
from tunecheck.core.finding import Domain
from tunecheck.core.log import log
from tunecheck.core.paths import session_folder
from tunecheck.core.trace import Trace, spelled
from tunecheck.core.unexpected import unexpected
from tunecheck.core.units import size_option
from tunecheck.hardware import Hardware, look_again, probe
from tunecheck.hardware.contention import CpuContention, recent_busy_cores
from tunecheck.history.remember import remember, with_history
from tunecheck.results import Report, reporting
from tunecheck.results.stored import VERDICT_FILE, json_text, plain, without_secrets, write_verdict
from tunecheck.session.admission import driver_fault, no_gpu, obstacle, require_usable
from tunecheck.session.leases import Cards
from tunecheck.session.rows import Rows

RUN = "a run by its name, id or YAML file, such as quick/smollm2-135m-qlora"
REPEATED: dict[str, Any] = {"action": "append", "default": []}
SET = {**REPEATED, "help": "override a key of every run; may be repeated", "metavar": "KEY=VALUE"}
IGNORE = {**REPEATED, "help": "accept a check's finding, with the reason", "metavar": 'NAME="REASON"'}
CARD: dict[str, Any] = {"help": "apply the settings of a GPU class from configs/cards: 8gb, cpu", "metavar": "CLASS"}
SIZE: dict[str, Any] = {"type": size_option, "metavar": "SIZE"}
FLAG: dict[str, Any] = {"action": "store_true"}
"""Keywords of `add_argument` for an option without a value."""
SESSION_OPTIONS: dict[str, dict[str, Any]] = {
    "--set": SET,
    "--card": CARD,
    "--require-gpu": {**FLAG, "help": "fail if there is no GPU, or if a run is skipped for lack of one"},
    "--vram-cap": {**SIZE, "help": "limit every GPU to this size, such as 8GiB, at admission and in the allocator"},
    "--fail-on-regression": {**FLAG, "help": "fail if a figure is worse than in previous sessions"},
    "--in-process": {**FLAG, "help": "train in the pytest process, for a debugger"},
}
"""Declared once for `pytest` and for `tunecheck run`, as those before it: the keywords of `add_argument`."""


class TierSession:
    """Trains each run once and keeps its findings for the report, which is the controller's, not a pytest worker's."""

    def __init__(
        self,
        *,
        command: str,
        require_gpu: bool = False,
        in_process: bool = False,
        vram_cap_bytes: int | None = None,
        fail_on_regression: bool = False,
        folder: Path | None = None,
    ) -> None:
        """`folder` is that of the controlling session; None when this is the controlling one."""
        self.require_gpu, self.in_process = require_gpu, in_process
        self._vram_cap_bytes, self.fail_on_regression = vram_cap_bytes, fail_on_regression
        self._contention = CpuContention(psutil.Process().children)  # the fork server imports already
        self._others_busy_cores: float | None = None
        self._reported = reporting(command)
        self._is_worker = folder is not None
        self.folder = folder or session_folder()
        self.rows = Rows(folder=self.folder, too_small="fail" if require_gpu else "skipped")
        self._traces: dict[str, Trace] = {}
        self.told = set[str]()  # runs whose problem a test has told already
        self._cards = Cards(look=self._look_again)

    @cached_property
    def hardware(self) -> Hardware:
        return replace(probe(), vram_cap_bytes=self._vram_cap_bytes)

    def open(self) -> None:
        """Create the session's folder. Raises TraceError now, rather than after the training, when it is unwritable."""
        trial = self.folder / ".writable"
        try:
            # two containers that share a folder share their process ids too
            if (self.folder / VERDICT_FILE).exists():
                raise TraceError(f"{self.folder}: holds a finished session, which nothing may change; start again")
            self.folder.mkdir(0o700, parents=True, exist_ok=True)  # it holds what the user's code printed
            trial.touch()
            trial.unlink()
        except OSError as error:
            why = f"{self.folder}: no report can be written there: {error.strerror}"
            raise TraceError(f"{why}. What to do: set TUNECHECK_REPORTS to a writable folder") from error

    def train(self, run: Run) -> Trace:
        """Train the run, at the first call, and return its trace; crashes, hangs and missing weights are in the trace.

        Its GPUs are leased meanwhile. Raises MachineTooSmall, or SuiteError when it could not begin; both are reported.
        """
        if run.name not in self._traces:
            started = time.monotonic()
            try:
                # even a run of any device may not go to the CPU then
                if self.require_gpu and not self.hardware.visible_gpus:
                    raise MachineTooSmall(f"needs a GPU (--require-gpu), but {no_gpu(self.hardware)}")
                with self._cards.lease(run) as cards:
                    self._traces[run.name] = self._execute(run, tuple(card.uuid for card in cards))
            except MachineTooSmall as reason:
                gone = self.require_gpu and not self.hardware.visible_gpus
                fault = driver_fault(self.hardware) or Domain.ENVIRONMENT
                self.rows.end(run, str(reason), fault if gone else "", too_small=True)
                raise
            except SuiteError as error:
                domain = error.domain if isinstance(error, GpuUnusable) else Domain.ENVIRONMENT
                self.rows.end(run, str(error), domain, seconds=time.monotonic() - started)
                raise
            except Exception as error:
                line = unexpected(error, self.folder)
                self.rows.end(run, line, Domain.UNKNOWN, seconds=time.monotonic() - started)
                raise SuiteError(line) from None
            finally:  # an interrupted run belongs into the report too
                self.rows.time(run.name, time.monotonic() - started, self._traces.get(run.name))
        return self._traces[run.name]

    def warm_up(self, runs: Iterable[Run]) -> None:
        """Start the imports of the training process, if any of these runs will need one."""
        self._others_busy_cores = others = max(self._contention.busy_cores(), recent_busy_cores())
        if others > 0.25:
            log.info(f"CPU contention: {others:.1f} cores busy; GOMP_SPINCOUNT=1000 set")
            fork_server.cool_down()  # one that has begun spins
            fork_server.limit_openmp_spinning()
        if not self.in_process and any(obstacle(run, self.hardware) is None for run in runs):
            fork_server.warm_up(bool(self.hardware.visible_gpus))
            if not self._is_worker:  # which leaves the report to another
                from tunecheck.report import page, terminal  # noqa: F401 - while the fork server imports, too

                page.template("page.html.jinja")

    def close(self, *, interrupted: bool) -> Report | None:
        """Write and return the report; None, with nothing written, for a worker, and where no run was reached."""
        with ThreadPoolExecutor(1) as cooling:  # its memory goes while the report is written
            cooling.submit(fork_server.cool_down)
            if self._is_worker:
                return None
            if not (runs := self.rows.all()):
                with suppress(OSError):  # nothing is in it: an unknown marker, an interrupt before the first run
                    self.folder.rmdir()
                return None
            report = self._reported(runs, interrupted=interrupted, environment=self._environment)
            return written(self._compared(report), self.folder)

    def _compared(self, report: Report) -> Report:
        """Return the report with its figures compared to previous sessions; a broken history costs no verdict."""
        try:
            report = with_history(report, self.folder)
        except Exception as error:
            note = f"nothing is compared with previous sessions ({type(error).__name__}: {error})"
            return replace(report, history_notes=(note,))
        return replace(report, verdict="fail") if self.fail_on_regression and report.regressions else report

    @property
    def _environment(self) -> dict[str, Any]:
        return {**spelled(self.hardware), "others_busy_cores": self._others_busy_cores}

    def _look_again(self) -> Hardware:
        """Read the GPUs' present state. Raises GpuUnusable when there are some that no run can use."""
        now = look_again(self.hardware)
        if self.hardware.visible_gpus and not now.visible_gpus:
            why = f"the GPUs that this session began with are gone: {no_gpu(now)}"
            raise GpuUnusable(f"{why}. What to do: run `tunecheck doctor`", driver_fault(now) or Domain.ENVIRONMENT)
        require_usable(now)
        return now

    def _execute(self, run: Run, cards: tuple[str, ...]) -> Trace:
        from tunecheck.runner import Runner

        if (self.folder / f"{run.stem}.jsonl").exists():
            raise SuiteError("another worker of this session started this run and died; no run is trained twice")
        return Runner(
            folder=self.folder,
            environment=self._environment,
            gpu=bool(self.hardware.visible_gpus),
            cards=cards,
            vram_cap_bytes=self._vram_cap_bytes,
            in_process=self.in_process,
        ).execute(run)


def written(report: Report, folder: Path) -> Report:
    """Write the report's files, update the history and return the report, without secrets."""
    from tunecheck.report.files import FILES, append_summary

    report = without_secrets(report)
    try:
        write_verdict(report, folder)
    except SuiteError as error:
        log.error(f"{error}\nThe verdict would be lost otherwise:\n{json_text(plain(report), indent=None)}")
        note = "verdict.json could not be written; a session without a verdict does not pass"
        told = replace(report, verdict="inconclusive", history_notes=(*report.history_notes, note))
        return report if report.verdict == "fail" else told
    for name, content in FILES.items():
        with _told():
            write_whole(folder / name, content(report))
    remedy = f"its figures are in {folder}, and `tunecheck history --rebuild` adds them"
    with _told(lambda error: f"this session is not in the history yet ({error}); {remedy}"):
        remember(report, folder)
    again = f"the verdict is in {folder}, and `tunecheck page {folder}` tries again"
    with _told(lambda error: f"no report.html ({type(error).__name__}: {error}); {again}"):
        from tunecheck.report.page import PAGE_FILE, page_html

        write_whole(folder / PAGE_FILE, page_html(report, folder))
    with _told():
        append_summary(report, os.environ)
    return report


@contextmanager
def _told(words: Callable[[Exception], object] = str) -> Iterator[None]:
    """Say on standard error what goes wrong in the block; it costs no verdict."""
    try:
        yield
    except Exception as error:
        log.error(f"{words(error)}")
