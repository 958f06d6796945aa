"""How each fault is done to a session: from outside of it, or by what it finds when it begins."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.chaos import cgroups
from benchmarks.chaos.hub import Answer, hub
from benchmarks.chaos.session import Ended, Session
from tunecheck.core.paths import shipped_folder

RESUMED = ("training.max_steps=12", "probes.resume_from=6")
SHORT = ("training.max_steps=5",)
DEADLINE = "deadline=60s"
STEPS_BEFORE = 1
"""Optimizer steps that are recorded before a fault."""


def at_steps(
    act: Callable[[Session], object], *settings: str, variables: dict[str, str] | None = None
) -> Callable[[Path], Ended]:
    """Return a function that does this to a session after its first steps."""

    def inject(folder: Path) -> Ended:
        session = Session(folder, settings, variables)
        began = session.wait_for_steps(STEPS_BEFORE)
        since = time.monotonic()
        try:
            if began:  # else it ended before, which its status and its output tell
                act(session)
        finally:
            ended = session.end(since)
        return ended

    return inject


def send(number: int, whom: str) -> Callable[[Session], object]:
    """Return a function that sends this signal to the "session", its "training" or its "fork_server"."""

    def act(session: Session) -> None:
        process = {"session": lambda: psutil.Process(session.process.pid)}.get(whom, getattr(session, whom, None))
        assert process is not None
        process().send_signal(number)

    return act


def kill_while_a_rank_hangs(session: Session) -> None:
    """Stop one of the training's ranks for good, then kill the session."""
    session.training().children()[-1].send_signal(signal.SIGSTOP)
    session.process.kill()


def limit_memory(session: Session) -> None:
    """Let the training have no more memory than it has."""
    session.training().rlimit(psutil.RLIMIT_AS, (1 << 20, 1 << 20))


def whole(*settings: str, prepare: Callable[[Path], dict[str, str]] = lambda folder: {}) -> Callable[[Path], Ended]:
    """Return a function that runs a session to its end, with the environment that `prepare` returns."""

    def inject(folder: Path) -> Ended:
        folder.mkdir(parents=True, exist_ok=True)
        since = time.monotonic()
        return Session(folder, settings, prepare(folder)).end(since)

    return inject


@contextmanager
def small_disk(folder: Path, options: str) -> Iterator[Path]:
    """Mount a file system of this size there ("size=24k"), and remove it afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def on_small_disk(variable: str, options: str, *settings: str) -> Callable[[Path], Ended]:
    """Return a function that runs a session whose folder of this variable lies on a file system of this size."""

    def inject(folder: Path) -> Ended:
        with small_disk(folder / "reports" if variable == "TUNECHECK_REPORTS" else folder / "small", options) as small:
            name = "history.sqlite" if variable == "TUNECHECK_HISTORY" else ""
            return whole(*settings, prepare=lambda _: {variable: str(small / name)})(folder)

    return inject


def damaged_checkpoint(pattern: str, damage: Callable[[Path], object]) -> Callable[[Path], Ended]:
    """Return a function that does this to a file of the checkpoint before it is read."""

    def inject(folder: Path) -> Ended:
        scratch = folder / "scratch"
        scratch.mkdir(parents=True)
        session = Session(folder, RESUMED, {"TMPDIR": str(scratch)})
        found: list[Path] = []

        def seen() -> bool:
            if session.steps() > 7:  # the checkpoint of step 6 is whole by then
                found.extend(scratch.glob(f"tunecheck-*/checkpoint/{pattern}"))
            return bool(found)

        session.wait_until(seen)
        since = time.monotonic()
        for path in found:
            damage(path)
        return session.end(since)

    return inject


def cut(path: Path) -> None:
    """Cut the file by a byte."""
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)


def empty(path: Path) -> None:
    """Leave the file without content."""
    path.write_bytes(b"")


def weights(change: Callable[[Path], object]) -> Callable[[Path], Ended]:
    """Return a function that runs with a changed copy of the tiny model's files."""

    def inject(folder: Path) -> Ended:
        copy = folder / "weights"
        shutil.copytree(shipped_folder() / "configs" / "models" / "tiny-llama", copy)
        change(copy)
        digest = "edd121cb9942f062a80726b22fa48ca9eb045f3a23a5d58679cac48f64c33cb0"  # as configs/models/tiny-llama.yaml
        return whole(*SHORT, f"model.sources=[{{kind: local, path: {copy}, sha256: {digest}}}]")(folder)

    return inject


def cut_file(name: str, size: int | None = None) -> Callable[[Path], object]:
    """Return a function that cuts this file of a folder to so many bytes, by default to half of them."""

    def change(folder: Path) -> None:
        path = folder / name
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2 if size is None else size)

    return change


def no_hub(folder: Path) -> dict[str, str]:
    """Return the variables of a machine without a network, and without a cache."""
    return {"HF_HUB_OFFLINE": "1", "TUNECHECK_CACHE": str(folder / "cache"), "HF_HOME": str(folder / "hub")}


def alter(folder: Path) -> None:
    """Change a bit in the middle of the weights."""
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def bad_hub(answer: Answer) -> Callable[[Path], Ended]:
    """Return a function that runs with a hub that answers so, and with nothing in the cache."""

    def inject(folder: Path) -> Ended:
        with hub(answer) as address:
            given = {**no_hub(folder), "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": address}
            return whole(*HUB_ONLY, prepare=lambda _: given)(folder)

    return inject


HUB_ONLY = (
    *SHORT,
    "model.sources=[{kind: hub, id: tunecheck/none, revision: abcdef7890123456789012345678901234567890}]",
)
BACKWARDS = """import time
_now, _start = time.time, time.monotonic()
time.time = lambda: _now() - (3600 if time.monotonic() - _start > 4 else 0)
"""


STUCK = """import ctypes, os, pathlib, signal, threading, time
go = pathlib.Path(__file__).with_name("go")
def stuck():
    while not go.exists():
        time.sleep(0.05)
    ctypes.CDLL(None).signal(signal.SIGTERM, 1)
    ctypes.PyDLL(None).sleep(100000)
os.register_at_fork(after_in_child=lambda: threading.Thread(target=stuck, daemon=True).start())
"""
"""In the training process, when told so: ignore SIGTERM, then stay in C code that keeps the interpreter's lock."""


def customized(folder: Path, content: str) -> dict[str, str]:
    """Write a module that every Python process of the session imports first; return the environment for it."""
    (folder / "custom").mkdir(parents=True)
    (folder / "custom" / "sitecustomize.py").write_text(content)
    return {"PYTHONPATH": str(folder / "custom")}


def clock_back(folder: Path) -> dict[str, str]:
    """Set the clock of every process back by an hour, after its first seconds."""
    return customized(folder, BACKWARDS)


def stuck(folder: Path) -> Ended:
    """Hang in C code, with SIGTERM ignored, as in a kernel that does not end."""
    variables = customized(folder, STUCK)
    return at_steps(lambda _: (folder / "custom" / "go").touch(), DEADLINE, variables=variables)(folder)


def frozen(folder: Path) -> Ended:
    """Let not even SIGKILL reach the training until the session has ended, as in a driver that does not return."""
    with cgroups.group("freezer") as group:

        def act(session: Session) -> None:
            cgroups.put(group, session.training().pid)
            cgroups.freeze(group, True)
            session.after = lambda: cgroups.freeze(group, False)

        return at_steps(act, DEADLINE)(folder)


def killed_by_cgroup(folder: Path) -> Ended:
    """Let the kernel kill the training, which needs more than its control group may have."""
    with cgroups.group("memory") as group:

        def act(session: Session) -> None:
            cgroups.limit_memory(group, 1 << 20)
            cgroups.put(group, session.training().pid)

        return at_steps(act)(folder)


def reports_are_a_file(folder: Path) -> dict[str, str]:
    """Put a file where the reports are to go."""
    (folder / "reports").touch()
    return {}


def two_sessions(folder: Path) -> Ended:
    """Run two at once into one folder of reports, and return what came of the later one."""
    first = Session(folder / "first", SHORT, {"TUNECHECK_REPORTS": str(folder / "second" / "reports")})
    since = time.monotonic()
    second = Session(folder / "second", SHORT).end(since)
    first.end(since)
    return second
