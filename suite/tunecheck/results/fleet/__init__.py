"""A fleet: what each card of each node answered, as plain data, and the report that all of them together make."""

import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from tunecheck import __version__
from tunecheck.core.check import grouped
from tunecheck.core.files import write_whole
from tunecheck.core.finding import Domain, Finding
from tunecheck.core.frozen import Frozen
from tunecheck.core.text import one_line
from tunecheck.results import Exit, Outcome, Verdict
from tunecheck.results.stored import Stored, json_text

ANSWER_FILE, FLEET_FILE, NODES_FOLDER = "answer.json", "fleet.json", "nodes"
DRAIN_TEXT, DRAIN_JSON = "drain.txt", "drain.json"

NODE_NAME = re.compile(r"(?!ALL$)[A-Za-z0-9][A-Za-z0-9._-]{0,252}", re.ASCII)
"""One node in Slurm's notation: neither a list, nor ALL, nor what a shell would read as more."""

NodeOutcome = Outcome | Literal["no answer"]
State = Literal["queued", "running", "answered", "lost"]


class Place(Frozen):
    """One place that is asked: a card of a node, or a node without one."""

    name: str
    """Unique in the fleet, and the name of its folder: the node, with the card's place where it has several."""
    node: str
    card: int | None = None
    """The card's place among those of the node; None where the node has none, or is asked as a whole."""
    problem: str = ""
    """Why it is not asked, in the engine's words; empty for one that is."""
    drained: bool = False
    """Whether it is not asked since it is out of service already, which says nothing of the fleet."""


def places_of(node: str, cards: int, *, problem: str = "", drained: bool = False) -> list[Place]:
    """Return the places of a node with so many cards: each of them, or the node itself where it has none."""
    about: dict[str, Any] = {"node": node, "problem": problem, "drained": drained}
    names = [f"{node}-{card}" for card in range(cards)] if cards > 1 else [node]
    return [Place(name=name, card=card if cards else None, **about) for card, name in enumerate(names)]


def of_nodes(places: list[Place], nodes: str) -> list[Place]:
    """Return the places of so many nodes that can be asked; all of them where `nodes` is no number."""
    usable = list(dict.fromkeys(place.node for place in places if not place.problem))
    return [place for place in places if place.node in usable[: int(nodes)]] if nodes.isdecimal() else places


class RunAnswer(Frozen):
    """One run of one place, condensed: what is compared between nodes, and what a page of many shows."""

    run: str
    outcome: Outcome
    reason: str = ""
    domain: Domain | Literal[""] = ""
    stopped: bool = False
    """Whether a signal from outside ended it: a cancelled job, a killed process."""
    passed: int = 0
    failed: tuple[Finding, ...] = ()
    unjudged: tuple[Finding, ...] = ()
    """Those that should have been judged."""
    fingerprint: str = ""
    kind: dict[str, str] = field(default_factory=dict)
    """What the same bits need: card or processor, driver, libraries, weights, rows, precision, numeric modes."""
    deterministic: bool = False
    numbers: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Every loss, gradient norm and evaluation of the training, in order; empty unless it came to its end."""
    figures: dict[str, float] = field(default_factory=dict)
    """By the names of tunecheck.results.fleet.kinds.FIGURES; without what was not measured."""
    disturbed: str = ""
    """Which other work took the processor meanwhile, so that its speed says little of the node."""


class Answer(Frozen):
    """What one place answered."""

    schema: int = 1
    place: str
    node: str
    card: int | None = None
    uuid: str = ""
    host: str
    tunecheck: str = __version__
    commit: str = ""
    """Of the checkout that it ran from; empty for an installed tunecheck."""
    began_at: float
    ended_at: float
    """By the clock of the node, in seconds since 1970."""
    status: int | None = None
    session: str = ""
    """Folder of its session, from the fleet's folder."""
    problem: str = ""
    runs: tuple[RunAnswer, ...] = ()
    history: tuple[dict[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if (session := PurePosixPath(self.session)).is_absolute() or ".." in session.parts or "\0" in self.session:
            raise ValueError(f"its session is {self.session!r}; it must be a folder below that of its fleet")

    @property
    def finished(self) -> bool:
        """Whether its session came to its end; one that was interrupted, or never began, is asked again."""
        return self.status is not None and self.status != Exit.INTERRUPTED and not self.problem


@dataclass(slots=True)
class Heard:
    """What is known of one place: while it is asked, and when it is judged."""

    place: Place
    state: State | Literal[""] = ""
    words: str = ""
    asked_at: float = 0.0
    """In seconds since 1970; 0.0 for one that was not asked now."""
    answer: Answer | None = None
    missing: str = ""
    gone: bool = False
    """Whether the node itself is gone, rather than busy: then it should take no further jobs."""
    clock: str = ""
    """That its clock is apart; empty for one that is not."""

    @property
    def said(self) -> str:
        return ": ".join(filter(None, (self.state, self.words)))


OVERDUE = 124
"""Status of a session that was stopped at --time, as that of timeout(1)."""


class NodeRow(Frozen):
    """One place in the report."""

    place: str
    node: str
    card: int | None = None
    kind: str = ""
    """Card or processor."""
    outcome: NodeOutcome
    reason: str = ""
    """Why there is no judgement, where nothing else says it."""
    status: int | None = None
    passed: int = 0
    failed: tuple[str, ...] = ()
    """Names of its own failed checks, by run: "quick/smollm2-135m-qlora: loss_oracle"."""
    unjudged: tuple[str, ...] = ()
    """Its own unjudged checks, likewise, with the reason that they share."""
    findings: tuple[Finding, ...] = ()
    """What only the fleet can show of it."""
    remarks: tuple[str, ...] = ()
    """What is odd about it and decides nothing."""
    drain: str = ""
    """Why it should take no further jobs; empty where nothing says so."""
    figures: dict[str, float] = field(default_factory=dict)
    """Of its first run."""
    session: str = ""
    age_seconds: float | None = None

    @property
    def odd(self) -> bool:
        return bool(self.outcome not in ("pass", "skipped") or self.remarks or self.drain)


class FleetReport(Frozen):
    """A whole fleet."""

    schema: int = 1
    tunecheck_version: str = __version__
    started_at: str
    seconds: float
    engine: str
    command: str = ""
    verdict: Verdict
    status: int
    interrupted: bool = False
    rows: tuple[NodeRow, ...] = ()
    """The odd ones first."""
    notes: tuple[str, ...] = ()


_OURS, _REMEDY = "written by `tunecheck fleet`", "read it with the tunecheck that wrote it"
ANSWERS = Stored(Answer, what=_OURS, remedy=_REMEDY)
FLEETS = Stored(FleetReport, what=_OURS, remedy=_REMEDY)


def reasons(report: FleetReport) -> dict[str, list[dict[str, Any]]]:
    """Return the nodes to drain, each with its places and why."""
    told = [(row, one_line(row.drain, 300)) for row in report.rows if row.drain]
    return grouped((row.node, {"place": row.place, "card": row.card, "reason": why}) for row, why in told)


def write_drain(report: FleetReport, folder: Path) -> None:
    """Write drain.txt and drain.json. Raises SuiteError when the folder cannot be written.

    The text is a line of nodes' names for `sinfo -n`, `scontrol update nodename=` and `sbatch --exclude`, or empty.
    """
    found = reasons(report)
    named = [node for node in found if NODE_NAME.fullmatch(node)]
    write_whole(folder / DRAIN_TEXT, ",".join(named) + "\n" if named else "")
    held = {"schema": 1, "nodes": [{"node": node, "places": why} for node, why in found.items()]}
    write_whole(folder / DRAIN_JSON, json_text(held))
