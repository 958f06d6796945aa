"""What a fleet is asked, written once into its folder and read by every node; and what an engine is that asks it."""

import contextlib
import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from tunecheck import __version__
from tunecheck.core.frozen import Frozen
from tunecheck.results.fleet import NODES_FOLDER, Place, State
from tunecheck.results.stored import Stored, write_record

REQUEST_FILE = "request.json"


class EngineOptions(Frozen):
    """What is asked of an engine; a field that an engine does not know is refused by the command line."""

    nodes: str = "all"
    """"all", a number where any will do, or names, in the engine's own notation."""
    cpus: int | None = None
    seconds: float = 1800.0
    """Most wall time of one place."""
    partition: str | None = None
    account: str | None = None
    constraint: str | None = None
    qos: str | None = None
    address: str = "auto"
    """Of a Ray cluster."""


class Request(Frozen):
    """One fleet session."""

    schema: int = 1
    id: str
    folder: str
    """Its absolute path, the same on every node."""
    engine: str
    options: EngineOptions
    arguments: tuple[str, ...]
    """Of `tunecheck run`: tiers or runs, and options."""
    command: str
    started_at: str
    working_folder: str
    """Where each session runs: runs, models and data of a user's own lie below it."""
    tunecheck: str = __version__
    places: tuple[Place, ...] = ()
    """Every place that was ever to be asked, known before the first one is."""

    def place_folder(self, place: str) -> Path:
        return Path(self.folder) / NODES_FOLDER / place


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

    summary: str
    options: tuple[str, ...]
    """Fields of EngineOptions that it knows besides nodes, cpus and seconds."""
    poll_seconds: float
    """Between two looks: each costs a scheduler that all users share."""

    def __init__(self, options: EngineOptions, folder: Path) -> None:
        """Import what not every machine has; `folder` is for its own files. Raises SuiteError where it is not there."""

    def places(self) -> list[Place]:
        """Return every place that the options name, also those that cannot be asked, with the reason."""

    def submit(self, request: Request, places: Sequence[Place]) -> None:
        """Ask the places of one node."""

    def poll(self) -> Iterable[News]:
        """Return what is known by now of the places that have not answered or were not lost before, without waiting."""

    def cancel(self) -> None:
        """Cancel what is queued and end what runs."""


_WHAT = "written by `tunecheck fleet`; give a fleet's folder, such as reports/runs/fleet-..."
_REQUEST = Stored(Request, what=_WHAT, remedy="run the fleet again with this tunecheck")


def write_request(request: Request) -> None:
    """Write request.json. Raises SuiteError when the folder cannot be written."""
    with contextlib.suppress(OSError):  # the next line says what is wrong
        Path(request.folder).mkdir(0o700, parents=True, exist_ok=True)
    write_record(request, Path(request.folder) / REQUEST_FILE)


def read_request(folder: Path) -> Request:
    """Read the request of a session's folder, wherever it lies now. Raises TraceError."""
    return dataclasses.replace(_REQUEST.read(folder / REQUEST_FILE), folder=str(folder.absolute()))
