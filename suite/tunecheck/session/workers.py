"""Several pytest workers in one session: how many there are, and which of them executes which run."""

from __future__ import annotations

import contextlib
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import psutil

from tunecheck.core.paths import shipped_folder
from tunecheck.core.redaction import redacted
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


def into(path: Path, worker: str) -> Callable[[str], None]:
    """Return a function that appends a line, prefixed by the worker's name, to this file: workers have no terminal."""

    def say(line: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{worker}: {redacted(line)}\n")

    return say


class Follower:
    """Prints the lines of a growing file that workers write, twice a second, from a thread of its own."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path, self._say = path, say
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
                self._say(line)


class OneWorkerARun:
    """A scheduler that gives every run as a whole to one worker, and never repeats what a dead worker had begun.

    This is pytest-xdist's Scheduling protocol (3.8). A worker begins an item only when it knows the next one, so it is
    sent its next run when one item of the previous run is left, and the signal to end when no run is left.
    """

    def __init__(self, workers: int, lose: Callable[[str, str], None]) -> None:
        self._workers, self._lose = workers, lose
        self._items: list[str] = []
        self._collected: set[Any] = set()
        self._waiting: deque[list[int]] | None = None
        """Runs not yet assigned, as indices into the collection; None before the first distribution."""
        self._given: dict[Any, deque[list[int]]] = {}
        """Each worker's runs without the finished items, in the order of execution."""

    @property
    def nodes(self) -> list[Any]:
        """Workers that are up."""
        return list(self._given)

    @property
    def collection_is_completed(self) -> bool:
        """Whether all workers of the start have collected; stays true when some die later."""
        return len(self._collected) >= self._workers

    @property
    def tests_finished(self) -> bool:
        """Whether every item was assigned and no worker has more than the one that it holds back left."""
        return self._waiting is not None and not self._waiting and all(self._left(node) < 2 for node in self._given)

    @property
    def has_pending(self) -> bool:
        """Whether anything is left to do."""
        return bool(self._waiting) or any(self._left(node) for node in self._given)

    def add_node(self, node: Any) -> None:
        """Register a worker that is up."""
        self._given[node] = deque()

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        """Register a worker's collection. Raises RuntimeError when it differs from that of the other workers."""
        items = list(collection)
        if self._collected and items != self._items:
            raise RuntimeError(f"worker {node.gateway.id} collected other tests than the others; nothing was run")
        self._items = items
        self._collected.add(node)

    def schedule(self) -> None:
        """Assign a run, or the signal to end, to every idle worker."""
        if self._waiting is None:
            runs: dict[str, list[int]] = {}
            for place, item in enumerate(self._items):
                runs.setdefault(run_of(item), []).append(place)
            self._waiting = deque(runs.values())
        for node in self.nodes:
            self._feed(node)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Remove an item that a worker has finished."""
        runs = self._given[node]
        runs[0].remove(item_index)
        if not runs[0]:
            runs.popleft()
        self._feed(node)

    def remove_node(self, node: Any) -> str | None:
        """Remove a dead worker; return the item that it died at, None when it had nothing left to do.

        `lose` is called with the run of that item and the worker's name; runs not begun go to other workers.
        """
        runs = self._given.pop(node)
        if not runs:
            return None
        begun, *untouched = runs
        assert self._waiting is not None
        self._waiting.extendleft(reversed(untouched))
        self._lose(run_of(self._items[begun[0]]), node.gateway.id)
        for other in self.nodes:
            self._feed(other)
        return self._items[begun[0]]

    def mark_test_pending(self, item: str) -> NoReturn:
        """Raise: xdist has it of its schedulers, and asks it of those that repeat items."""
        raise RuntimeError(f"{item}: no item is repeated")

    def remove_pending_tests_from_node(self, node: Any, indices: Sequence[int]) -> NoReturn:
        """Raise: xdist has it of its schedulers, and asks it of those that move items to other workers."""
        raise RuntimeError(f"items {list(indices)}: none moves to another worker")

    def _left(self, node: Any) -> int:
        return sum(map(len, self._given[node]))

    def _feed(self, node: Any) -> None:
        if node.shutting_down or node not in self._collected:
            return
        while self._waiting and self._left(node) < 2:
            run = self._waiting.popleft()
            self._given[node].append(list(run))
            node.send_runtest_some(run)
        if not self._waiting:
            node.shutdown()
