"""The faults: what is done to a session, and the word that it has to get. Numbers are those of docs/reliability.md."""

from __future__ import annotations

import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil

from benchmarks.chaos.session import Ended, Session
from suite.core.paths import shipped_folder

RESUMED = ("training.max_steps=12", "probes.resume_from=6")
SHORT = ("training.max_steps=5",)
STEPS_BEFORE = 1
"""Optimizer steps that are recorded before a fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault and what has to come of it."""

    name: str
    inject: Callable[[Path], Ended]
    """Run a session in this folder with the fault in it."""
    status: int
    outcome: str = "error"
    """Of the run; empty where no verdict can be written, or no run began."""
    domain: str = ""
    keeps: int = STEPS_BEFORE
    """Least number of optimizer steps that the trace must still have."""
    root: bool = False
    """Whether only root can make it: it mounts a small file system."""


def _at_steps(act: Callable[[Session], object], *settings: str) -> Callable[[Path], Ended]:
    """Return a function that does this to a session after its first steps."""

    def inject(folder: Path) -> Ended:
        session = Session(folder, settings)
        began = session.wait_for_steps(STEPS_BEFORE)
        since = time.monotonic()
        try:
            if began:  # else it ended before, which its status and its output tell
                act(session)
        finally:
            ended = session.end(since)
        return ended

    return inject


def _send(number: int, whom: str) -> Callable[[Session], object]:
    def act(session: Session) -> None:
        process = {"session": lambda: psutil.Process(session.process.pid)}.get(whom, getattr(session, whom, None))
        assert process is not None
        process().send_signal(number)

    return act


def _limit_memory(session: Session) -> None:
    session.training().rlimit(psutil.RLIMIT_AS, (1 << 20, 1 << 20))


def _whole(*settings: str, prepare: Callable[[Path], dict[str, str]] = lambda folder: {}) -> Callable[[Path], Ended]:
    """Return a function that runs a session to its end, with the environment that `prepare` returns."""

    def inject(folder: Path) -> Ended:
        folder.mkdir(parents=True, exist_ok=True)
        since = time.monotonic()
        return Session(folder, settings, prepare(folder)).end(since)

    return inject


@contextmanager
def small_disk(folder: Path, kib: int) -> Iterator[Path]:
    """Mount a file system of so many KiB there, and remove it afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _reports_on(kib: int) -> Callable[[Path], Ended]:
    def inject(folder: Path) -> Ended:
        with small_disk(folder / "reports", kib):
            return _whole(*SHORT)(folder)

    return inject


def _scratch_on(kib: int) -> Callable[[Path], Ended]:
    def inject(folder: Path) -> Ended:
        with small_disk(folder / "scratch", kib) as scratch:
            return _whole(*RESUMED, prepare=lambda _: {"TMPDIR": str(scratch)})(folder)

    return inject


def _cut_checkpoint(folder: Path) -> Ended:
    scratch = folder / "scratch"
    scratch.mkdir(parents=True)
    session = Session(folder, RESUMED, {"TMPDIR": str(scratch)})
    cut: list[Path] = []

    def seen() -> bool:
        if session.steps() > 7:  # the checkpoint of step 6 is whole by then
            cut.extend(scratch.glob("tunecheck-*/checkpoint/*.safetensors"))
        return bool(cut)

    session.wait_until(seen)
    since = time.monotonic()
    for path in cut:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - 1)
    return session.end(since)


def _weights(change: Callable[[Path], object]) -> Callable[[Path], Ended]:
    """Return a function that runs with a changed copy of the tiny model's files."""

    def inject(folder: Path) -> Ended:
        copy = folder / "weights"
        shutil.copytree(shipped_folder() / "configs" / "models" / "tiny-llama", copy)
        change(copy)
        return _whole(*SHORT, f"model.sources=[{{kind: local, path: {copy}}}]")(folder)

    return inject


def _cut_file(name: str, size: int | None = None) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        path = folder / name
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2 if size is None else size)

    return change


def _no_hub(folder: Path) -> dict[str, str]:
    return {"HF_HUB_OFFLINE": "1", "TUNECHECK_CACHE": str(folder / "cache"), "HF_HOME": str(folder / "hub")}


class _Broken(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(503)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def _broken_hub(folder: Path) -> Ended:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Broken)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        given = {**_no_hub(folder), "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": address}
        return _whole(*HUB_ONLY, prepare=lambda _: given)(folder)
    finally:
        server.shutdown()


HUB_ONLY = (
    *SHORT,
    "model.sources=[{kind: hub, id: tunecheck/none, revision: abcdef7890123456789012345678901234567890}]",
)
BACKWARDS = """import time
_now, _start = time.time, time.monotonic()
time.time = lambda: _now() - (3600 if time.monotonic() - _start > 4 else 0)
"""


def _clock_back(folder: Path) -> dict[str, str]:
    (folder / "clock").mkdir()
    (folder / "clock" / "sitecustomize.py").write_text(BACKWARDS)
    return {"PYTHONPATH": str(folder / "clock")}


def _reports_are_a_file(folder: Path) -> dict[str, str]:
    (folder / "reports").touch()
    return {}


def _two_sessions(folder: Path) -> Ended:
    first = Session(folder / "first", SHORT, {"TUNECHECK_REPORTS": str(folder / "second" / "reports")})
    since = time.monotonic()
    second = Session(folder / "second", SHORT).end(since)
    first.end(since)
    return second


def faults() -> Sequence[Fault]:
    """Return every fault that a machine without a GPU can have, in the order of the report."""
    environment, unknown, error = "environment", "unknown", 6
    return (
        Fault(
            name="training killed (SIGKILL)",
            inject=_at_steps(_send(signal.SIGKILL, "training")),
            status=error,
            domain=environment,
        ),
        Fault(
            name="training crashed (SIGSEGV)",
            inject=_at_steps(_send(signal.SIGSEGV, "training")),
            status=error,
            domain=unknown,
        ),
        Fault(
            name="training stopped until its deadline (SIGSTOP)",
            inject=_at_steps(_send(signal.SIGSTOP, "training"), "deadline=90s"),
            status=error,
            domain=unknown,
        ),
        Fault(
            name="fork server killed",
            inject=_at_steps(_send(signal.SIGKILL, "fork_server")),
            status=error,
            domain=environment,
        ),
        Fault(
            name="no more host memory (RLIMIT_AS)", inject=_at_steps(_limit_memory), status=error, domain=environment
        ),
        Fault(name="session: Ctrl-C", inject=_at_steps(_send(signal.SIGINT, "session")), status=2),
        Fault(name="session: SIGTERM", inject=_at_steps(_send(signal.SIGTERM, "session")), status=2),
        Fault(name="session: SIGHUP", inject=_at_steps(_send(signal.SIGHUP, "session")), status=2),
        Fault(name="session: SIGKILL", inject=_at_steps(_send(signal.SIGKILL, "session")), status=-9, outcome=""),
        Fault(
            name="disk full while the trace is written (reports on 24 KiB)",
            inject=_reports_on(24),
            status=error,
            outcome="",
            root=True,
        ),
        Fault(
            name="disk full when the verdict is written (reports on 48 KiB)",
            inject=_reports_on(48),
            status=error,
            outcome="",
            root=True,
        ),
        Fault(
            name="disk full at the checkpoint (temporary folder on 64 KiB)",
            inject=_scratch_on(64),
            status=error,
            domain=environment,
            root=True,
        ),
        Fault(
            name="no room for a temporary folder (on 4 KiB)",
            inject=_scratch_on(4),
            status=error,
            domain=environment,
            keeps=0,
            root=True,
        ),
        Fault(
            name="reports folder is a file",
            inject=_whole(*SHORT, prepare=_reports_are_a_file),
            status=4,
            outcome="",
            keeps=0,
        ),
        Fault(
            name="checkpoint cut by a byte before it is read",
            inject=_cut_checkpoint,
            status=error,
            outcome="inconclusive",
        ),
        Fault(
            name="weights half downloaded",
            inject=_weights(_cut_file("model.safetensors")),
            status=error,
            domain=environment,
            keeps=0,
        ),
        Fault(
            name="weights are an LFS pointer of 130 bytes",
            inject=_weights(_cut_file("model.safetensors", 130)),
            status=error,
            domain=environment,
            keeps=0,
        ),
        Fault(
            name="config.json lost",
            inject=_weights(lambda copy: (copy / "config.json").unlink()),
            status=error,
            domain=environment,
            keeps=0,
        ),
        Fault(
            name="hub offline, cache empty",
            inject=_whole(*HUB_ONLY, prepare=_no_hub),
            status=error,
            domain=environment,
            keeps=0,
        ),
        Fault(name="hub answers 503", inject=_broken_hub, status=error, domain=environment, keeps=0),
        Fault(
            name="clock set back an hour during the run",
            inject=_whole(*SHORT, prepare=_clock_back),
            status=0,
            outcome="pass",
        ),
        Fault(name="two sessions at once, one reports folder", inject=_two_sessions, status=0, outcome="pass"),
    )
