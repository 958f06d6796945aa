"""Control groups of Linux: a limit of memory by which the kernel kills, and a freeze that no signal gets through."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
LIMITS = ("memory.limit_in_bytes", "memory.max")
"""Files of version 1 and 2."""


def lacking(controller: str) -> str:
    """Return why no group of this controller ("memory", "freezer") can be made here; "" when one can."""
    try:
        with group(controller):
            return ""
    except OSError as error:
        return f"this machine lets nobody make a control group of {controller}: {error.strerror or error}"


@contextmanager
def group(controller: str) -> Iterator[Path]:
    """Make a group below this process's own and remove it when its processes are gone. Raises OSError."""
    folder = _own(controller) / f"chaos-{time.monotonic_ns()}"
    folder.mkdir()
    try:
        if not any((folder / name).exists() for name in (*LIMITS, "freezer.state")):
            raise FileNotFoundError(None, f"no {controller} controller below {folder.parent}")
        yield folder
    finally:
        deadline = time.monotonic() + 10
        while folder.exists() and time.monotonic() < deadline:
            with suppress(OSError):
                folder.rmdir()
            time.sleep(0.1)


def limit_memory(folder: Path, limit_bytes: int) -> None:
    """Let the kernel kill in this group what needs more; what its processes held before they came does not count."""
    next(folder / name for name in LIMITS if (folder / name).exists()).write_text(str(limit_bytes))


def freeze(folder: Path, frozen: bool) -> None:
    """Freeze the group's processes, or let them go on: a frozen one does not even die of SIGKILL (version 1)."""
    (folder / "freezer.state").write_text("FROZEN" if frozen else "THAWED")


def put(folder: Path, process_id: int) -> None:
    """Move a process into the group."""
    (folder / "cgroup.procs").write_text(str(process_id))


def _own(controller: str) -> Path:
    """Return the folder of this process's own group: that of the controller, or of version 2."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            own = ROOT / controller / path.lstrip("/")
            return own if own.exists() else ROOT / controller  # in a container whose own group is the root
    return ROOT
