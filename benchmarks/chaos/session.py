"""A session as a user starts it, watched from outside until it is time for its fault."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.detection.trial import TINY
from tunecheck.core.paths import python_path

RUN = "quick/smollm2-135m-qlora"
STEPS = 400
"""More than any fault waits for; a step of the tiny model takes 0.05 s."""
PATIENCE_SECONDS = 600.0
"""For a whole session on a busy machine."""
_FORK_SERVER = "multiprocessing.forkserver"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a session left."""

    status: int
    output: str
    seconds: float
    """From the fault to the end of the session."""
    verdict: dict[str, Any] | None
    """verdict.json; None where there is none."""
    steps_kept: int
    """Optimizer steps in the traces."""
    files: tuple[str, ...]
    """Names of the session's files."""
    processes_left: tuple[str, ...]
    """Command lines of its processes that were still there 2 s after its end."""

    @property
    def row(self) -> dict[str, Any]:
        """The first run of the verdict; empty without one."""
        runs = self.verdict["runs"] if self.verdict else []
        return runs[0] if runs else {}

    @property
    def tracebacks(self) -> int:
        """Tracebacks and internal errors in what was printed."""
        return self.output.count("Traceback (most recent call last)") + self.output.count("INTERNALERROR")


class Session:
    """A `tunecheck run` of the tiny model in a process of its own."""

    def __init__(self, folder: Path, settings: Sequence[str] = (), environment: dict[str, str] | None = None) -> None:
        """Start it; its reports go below this folder. Of PYTHONPATH the folders are added."""
        self.reports = folder / "reports"
        chosen = (*TINY, f"training.max_steps={STEPS}", "probes.oracle_steps=[0]", "device=cpu", *settings)
        command = [sys.executable, "-m", "tunecheck.cli", "run", RUN]
        command += [part for setting in chosen for part in ("--set", setting)]
        given, inherited = dict(environment or {}), os.environ.get("PYTHONPATH")
        own = {
            "TUNECHECK_REPORTS": str(self.reports),
            "TUNECHECK_HISTORY": str(folder / "history.sqlite"),
            "PYTHONPATH": os.pathsep.join(filter(None, (given.pop("PYTHONPATH", None), *python_path(), inherited))),
            "PYTHONUNBUFFERED": "1",
        }
        self._log = folder / "output.txt"
        folder.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                ["env", "--default-signal=HUP", *command],  # under nohup it would be ignored, rightly
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **own, **given},
            )
        self._seen: dict[int, psutil.Process] = {}
        self.after: Callable[[], object] = lambda: None
        """Called when the session has ended, before it is looked for what it left."""

    def wait_for_steps(self, steps: int) -> bool:
        """Wait until the run has recorded so many optimizer steps; return False if it ended before."""
        return self.wait_until(lambda: self.steps() >= steps)

    def wait_until(self, condition: Callable[[], bool]) -> bool:
        """Wait until this is so; return False if the session ended before, or PATIENCE_SECONDS are over."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.process.poll() is None and time.monotonic() < deadline:
            self._look()
            if condition():
                return True
            time.sleep(0.05)
        return condition()

    def steps(self) -> int:
        """Return the number of optimizer steps in the traces."""
        return sum(path.read_bytes().count(b'"kind": "Step"') for path in self.reports.glob("*/*.jsonl"))

    def training(self) -> psutil.Process:
        """Return the training process. Raises RuntimeError when there is none."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if child.ppid() != self.process.pid and _is_fork(child):
                    return child
        raise RuntimeError("there is no training process")

    def fork_server(self) -> psutil.Process:
        """Return the fork server. Raises RuntimeError when there is none."""
        for child in psutil.Process(self.process.pid).children():
            if _is_fork(child):
                return child
        raise RuntimeError("there is no fork server")

    def end(self, since: float) -> Ended:
        """Wait for the end of the session and return what it left; `since` is the moment of the fault."""
        try:
            status = self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        seconds = time.monotonic() - since
        self.after()
        left = self._left()
        verdicts = sorted(self.reports.glob("*/verdict.json"))
        return Ended(
            status=status,
            output=self._log.read_text(errors="replace"),
            seconds=seconds,
            verdict=json.loads(verdicts[-1].read_text(encoding="utf-8")) if verdicts else None,
            steps_kept=self.steps(),
            files=tuple(sorted({path.name for path in self.reports.glob("*/*")})),
            processes_left=tuple(left),
        )

    def _left(self) -> list[str]:
        """Kill the processes that are still there, and return their command lines; what is dead may wait for init."""
        left = []
        for process in psutil.wait_procs(list(self._seen.values()), timeout=2.0)[1]:
            with suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_ZOMBIE:
                    left.append(" ".join(process.cmdline())[-80:])
                    process.kill()
        return left

    def _look(self) -> None:
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                self._seen.setdefault(child.pid, child)


def _is_fork(process: psutil.Process) -> bool:
    return any(_FORK_SERVER in argument for argument in process.cmdline())
