"""Several pytest workers in one session: how many there are, which run an item belongs to, what they print."""

import contextlib
import re
import threading
from collections.abc import Iterable
from pathlib import Path

import psutil

from tunecheck.core.log import log
from tunecheck.core.paths import shipped_folder
from tunecheck.hardware import probe
from tunecheck.session.leases import usable

_ITEM = re.compile(r"test_(?P<tier>[a-z]+)\.py::[^\[]*\[(?P<run>.*)-[^-]*\]$")


def worker_count() -> int:
    """Return the number of GPUs that this process may compute on; 1 without any."""
    return max(1, len(usable(probe())))


def asks_for_tiers(arguments: Iterable[str]) -> bool:
    """Return whether any of these paths (or node ids) is the folder of the tiers, lies in it or contains it."""
    tiers = shipped_folder() / "tiers"
    paths = [Path(argument.partition("::")[0]).resolve() for argument in arguments]
    return any(path.is_relative_to(tiers) or tiers.is_relative_to(path) for path in paths)


def run_of(node_id: str) -> str:
    """Return the run of a check's node id, such as "quick/smollm2-135m-qlora"; any other node id unchanged."""
    match = _ITEM.search(node_id)
    return f"{match['tier']}/{match['run']}" if match else node_id


def end_workers() -> None:
    """Terminate the workers of this process, which end as by Ctrl-C; xdist would let them go on for 5 s.

    They are its only children: it trains nothing itself.
    """
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            child.terminate()


def append(path: Path, worker: str, line: str) -> None:
    """Append a line, prefixed by the worker's name, to this file: workers have no terminal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{worker}: {line}\n")


class Follower:
    """Logs the lines of a growing file that workers write, twice a second, from a thread of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._printed_bytes = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def start(self) -> None:
        """Start printing every whole line; the file need not exist yet."""
        self._thread.start()

    def stop(self) -> None:
        """Print the remaining lines and stop; do nothing if it was not started."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _follow(self) -> None:
        while not self._stopped.wait(0.5):
            self._print_new()
        self._print_new()

    def _print_new(self) -> None:
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._printed_bytes)
            whole, end, _ = file.read().rpartition(b"\n")
            self._printed_bytes += len(whole) + len(end)
            for line in whole.decode(errors="replace").splitlines():
                log.info(line)
