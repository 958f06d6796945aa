"""Ray: one task on each card, a node's cards reserved together: else a node with a busy one runs two on another."""

import contextlib
import logging
import re
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tunecheck.core.errors import ConfigError, SuiteError
from tunecheck.core.text import one_line
from tunecheck.fleet import node
from tunecheck.fleet.request import EngineOptions, News, Request
from tunecheck.results.fleet import Place, of_nodes, places_of

CONNECT_SECONDS = 10.0


def task(folder: str, fleet: str, version: str, place: dict[str, Any]) -> dict[str, Any]:
    """Answer for the card that Ray gave this task: its worker has CUDA_VISIBLE_DEVICES set."""
    return node.answer(folder, fleet, version, Place(**place))


class RayCluster:
    """Tasks of one session."""

    summary = "a task on each GPU of a running Ray cluster"
    options: tuple[str, ...] = ("address",)
    poll_seconds = 1.0

    def __init__(self, options: EngineOptions, folder: Path) -> None:
        """Connect. Raises ConfigError where ray is missing, SuiteError where no cluster is."""
        try:
            import ray
        except ModuleNotFoundError:
            needed = "--engine ray: ray is not installed here: install the version that the cluster runs"
            raise ConfigError([needed]) from None
        self._ray, self._options = ray, options
        try:
            _reach(options.address)
            ray.init(address=options.address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
        except Exception as error:  # ConnectionError without a cluster, RuntimeError for another version of Ray
            words = f"no Ray cluster at {options.address}: {one_line(str(error), 400).rstrip('.')}"
            remedy = "What to do: run `ray start --head` there, or give its address with --address"
            raise SuiteError(f"--engine ray: {words}. {remedy}") from None
        self._tasks: dict[Any, tuple[Place, Any]] = {}
        self._groups: list[tuple[Any, Sequence[Place], Request]] = []
        """Reservations that are waited for."""
        self._ids: dict[str, str] = {}
        """Ray's own names of the nodes."""

    def places(self) -> list[Place]:
        """Return every card of every node, those of dead nodes with the reason."""
        nodes = self._ray.nodes()  # whose names become those of folders
        names = (str(one.get("NodeName") or one.get("NodeManagerHostname") or one["NodeID"][:12]) for one in nodes)
        held = [(re.sub(r"[^A-Za-z0-9_.-]", "-", name), one) for name, one in zip(names, nodes, strict=True)]
        twice = {name for name, number in Counter(name for name, _ in held).items() if number > 1}
        found: list[Place] = []
        for name, one in held:
            unique = f"{name}-{one['NodeID'][:6]}" if name in twice else name
            self._ids[unique] = one["NodeID"]
            problem = "" if one["Alive"] else "Ray says: dead"
            found += places_of(unique, int(one["Resources"].get("GPU", 0)), problem=problem)
        return _chosen(found, self._options.nodes)

    def submit(self, request: Request, places: Sequence[Place]) -> None:
        """Reserve the cards of the node; its tasks begin when all of them are free."""
        from ray.util.placement_group import placement_group

        each = {"CPU": float(self._options.cpus or 1)}
        bundle = {**each, "GPU": 1.0} if places[0].card is not None else each
        # the label of every node; the resource `node:ADDRESS` is no name: two nodes of one machine have the same
        here, count = {"ray.io/node-id": self._ids[places[0].node]}, len(places)
        try:
            group = placement_group([bundle] * count, strategy="STRICT_PACK", bundle_label_selector=[here] * count)
        except (TypeError, ValueError) as error:  # TypeError: a Ray from before there were label selectors
            raise SuiteError(f"Ray {self._ray.__version__} reserves no cards of a node by its name: {error}") from None
        self._groups.append((group, places, request))

    def poll(self) -> Iterator[News]:
        """Start the tasks whose cards are reserved; return those that have ended."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        for waiting in list(self._groups):
            group, places, request = waiting
            if not group.wait(0):
                continue
            self._groups.remove(waiting)
            for bundle, place in enumerate(places):
                remote = self._ray.remote(max_retries=0)(task).options(
                    num_cpus=float(self._options.cpus or 1),
                    num_gpus=1 if place.card is not None else 0,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(group, bundle),
                )
                started = remote.remote(request.folder, request.id, request.tunecheck, asdict(place))
                self._tasks[started] = (place, group)
                yield News(place=place.name, state="running")
        done = self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=0)[0] if self._tasks else []
        yield from map(self._result, done)

    def cancel(self) -> None:
        """Cancel every task, and give back what is reserved."""
        for reference in self._tasks:
            with contextlib.suppress(Exception):
                self._ray.cancel(reference, force=False)
        for group in [group for group, *_ in self._groups] + [group for _, group in self._tasks.values()]:
            self._give_back(group)

    def _result(self, reference: Any) -> News:
        place, group = self._tasks.pop(reference)
        try:
            return News(place=place.name, state="answered", answer=self._ray.get(reference))
        except Exception as error:
            kind, words = type(error).__name__, one_line(str(error), 300)
            dead = kind in ("NodeDiedError", "ActorUnschedulableError") or ("node" in words and "died" in words)
            return News(place=place.name, state="lost", words=f"Ray: {kind}: {words}", sick=dead)
        finally:
            if not any(held is group for _, held in self._tasks.values()):
                self._give_back(group)

    def _give_back(self, group: Any) -> None:
        from ray.util.placement_group import remove_placement_group

        with contextlib.suppress(Exception):
            remove_placement_group(group)


def _reach(address: str) -> None:
    """Raise OSError at once where nothing listens at this address: Ray itself tries for minutes."""
    if match := re.fullmatch(r"([^/]+):(\d+)", address):
        socket.create_connection((match[1], int(match[2])), timeout=CONNECT_SECONDS).close()


def _chosen(places: list[Place], nodes: str) -> list[Place]:
    """Return the places of these nodes. Raises ConfigError for names that the cluster does not have."""
    if nodes == "all" or nodes.isdecimal():
        return of_nodes(places, nodes)
    if unknown := sorted(set(wanted := nodes.split(",")) - {place.node for place in places}):
        known = dict.fromkeys(place.node for place in places if not place.problem)
        raise ConfigError([f"--nodes: Ray has no node {', '.join(unknown)}; it has {', '.join(known)}"])
    return [place for place in places if place.node in wanted]
