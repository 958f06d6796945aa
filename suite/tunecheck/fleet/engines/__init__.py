"""Engines: what finds the nodes, starts a task on each and cancels what is queued. None of them is tunecheck's own."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from tunecheck.core.frozen import Frozen
from tunecheck.fleet.request import Request
from tunecheck.results.fleet import Place, State


class News(Frozen):
    """What an engine knows of one place."""

    place: str
    state: State
    words: str = ""
    """Why it waits, or was lost."""
    answer: dict[str, Any] | None = None
    """As the engine handed it over; None where it has none yet."""
    sick: bool = False
    """Of a lost one: whether the node itself is gone."""


class Engine(Protocol):
    """One way to reach nodes. Every method raises SuiteError with the engine's own words when it refuses."""

    def places(self) -> list[Place]:
        """Return every place that the options name, also those that cannot be asked, with the reason."""

    def submit(self, request: Request, places: Sequence[Place]) -> None:
        """Ask the places of one node."""

    def poll(self) -> Iterable[News]:
        """Return what is known by now of the places that have not answered or were not lost before, without waiting."""

    def cancel(self) -> None:
        """Cancel what is queued and end what runs."""


class EngineEntry(Frozen):
    """An engine of the command line."""

    kind: str
    """Its class, imported when it is asked for, with packages that not every machine has. It is made of EngineOptions
    and the folder for its own files, and raises SuiteError where it is not there."""
    summary: str
    options: tuple[str, ...]
    """Fields of EngineOptions that it knows besides nodes, cpus and seconds."""
    poll_seconds: float
    """Between two looks: each costs a scheduler that all users share."""


ENGINES: dict[str, EngineEntry] = {
    "local": EngineEntry(
        kind="tunecheck.fleet.engines.local:Local",
        summary="the cards of this machine, or its processor",
        options=(),
        poll_seconds=0.5,
    ),
    "slurm": EngineEntry(
        kind="tunecheck.fleet.engines.slurm:Slurm",
        summary="a job on each node of a Slurm cluster, by submitit",
        options=("partition", "account", "constraint", "qos"),
        poll_seconds=5.0,
    ),
    "ray": EngineEntry(
        kind="tunecheck.fleet.engines.ray_cluster:RayCluster",
        summary="a task on each card of a running Ray cluster",
        options=("address",),
        poll_seconds=1.0,
    ),
}
