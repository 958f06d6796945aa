"""The cards of this machine: a session for each, or some on the processor, in processes of this one."""

import os
import platform
import re
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tunecheck.core.errors import ConfigError
from tunecheck.core.redaction import redacted
from tunecheck.fleet import node
from tunecheck.fleet.request import EngineOptions, News, Request
from tunecheck.hardware import probe
from tunecheck.results.fleet import Place, places_of


class Local:
    """Threads, each of which waits for one session."""

    summary = "the GPUs of this machine, or its CPU"
    options: tuple[str, ...] = ()
    poll_seconds = 0.5

    def __init__(self, options: EngineOptions, folder: Path) -> None:
        """It has no files of its own in the folder."""
        hardware = probe()
        self._cards = [*(card.uuid for card in hardware.usable_gpus), *_lacking(len(hardware.visible_gpus))]
        self._number = _number(options.nodes, len(self._cards))
        self._stop = threading.Event()
        # on one processor sessions would slow each other down, and none would have its speed
        self._threads = ThreadPoolExecutor(max_workers=self._number if self._cards else 1)
        self._tasks: dict[str, Future[dict[str, Any]]] = {}

    def places(self) -> list[Place]:
        """Return the cards, by CUDA's order; without any, as many places on the processor as were asked for."""
        name = os.environ.get("TUNECHECK_NODE") or platform.node()  # a pod's own name is not that of its node
        if "/" in name or "\0" in name or name in (".", "..") or redacted(name) != name:
            raise ConfigError([f"TUNECHECK_NODE={name!r}: should be a node name that is also a valid folder name"])
        places = places_of(name, self._number)
        return places if self._cards else [replace(place, card=None) for place in places]

    def submit(self, request: Request, places: Sequence[Place]) -> None:
        for place in places:
            shown = {"CUDA_VISIBLE_DEVICES": self._cards[place.card]} if place.card is not None else {}
            ask = partial(node.answer, request.folder, request.id, request.tunecheck, place, self._stop, **shown)
            self._tasks[place.name] = self._threads.submit(ask)

    def poll(self) -> Iterator[News]:
        for name, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[name]
                yield News(place=name, state="answered", answer=task.result())
            elif task.running():
                yield News(place=name, state="running")

    def cancel(self) -> None:
        """End every session and wait for it: each writes what it has."""
        self._stop.set()
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._tasks = {name: task for name, task in self._tasks.items() if not task.cancelled()}


def _lacking(visible: int) -> list[str]:
    """Return the GPUs that Slurm or Kubernetes lists beyond the visible ones, where CUDA's list ends."""
    by_cuda, by_kubernetes = os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("NVIDIA_VISIBLE_DEVICES", "")
    listed = by_cuda.split(",") if by_cuda is not None else re.findall(r"(?:GPU|MIG)-[^,]+", by_kubernetes)
    return [name for entry in listed[visible:] if (name := entry.strip()) not in ("", "-1", "NoDevFiles")]


def _number(nodes: str, cards: int) -> int:
    if nodes == "all":
        return max(1, cards)
    if not nodes.isdecimal() or int(nodes) == 0:
        raise ConfigError([f"--nodes {nodes}: with --engine local it should be all, or a number of places"])
    if cards and int(nodes) > cards:
        raise ConfigError([f"--nodes {nodes}: this machine shows {cards}; CUDA_VISIBLE_DEVICES chooses among them"])
    return int(nodes)
