"""What was measured of the peers, as committed, and the rows of the table in docs/detection.md. No torch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Any

from benchmarks.peers.causes import BUG, CAUSES, GOOD, base_of
from benchmarks.peers.peers import PEERS, Peer
from tunecheck.core.files import write_whole
from tunecheck.core.paths import project_folder

RESULTS = project_folder() / "reports" / "peers"
"""A file for each peer, named after its adapter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A peer's line of the table."""

    peer: Peer
    bugs: int
    """Mistakes that were tried."""
    named: tuple[str, ...]
    flagged: tuple[str, ...]
    """Flagged without a name."""
    healthy: int
    """Healthy scripts that were tried."""
    healthy_flagged: tuple[str, ...]
    cpu_seconds: float
    """Median of a script, imports left out."""
    problems: dict[str, str]
    """Script to why it could not be tried."""


def record(peer: Peer, answer: Mapping[str, Any]) -> None:
    """Put this answer into the peer's results."""
    held = answers_of(peer)
    kept = {key: answer[key] for key in ("said", "problem", "cpu_seconds")}
    held[f"{answer['kind']}: {answer['name']}"] = {**kept, "date": f"{datetime.now(UTC):%Y-%m-%d}"}
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"packages": peer.packages, "scripts": held}, indent=1)
    write_whole(RESULTS / f"{peer.adapter}.json", text + "\n")


def answers_of(peer: Peer) -> dict[str, Any]:
    """Return what was measured of this peer, by "kind: name" of the script; empty where nothing was."""
    file = RESULTS / f"{peer.adapter}.json"
    held: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["scripts"] if file.exists() else {}
    return held


def rows() -> list[Row]:
    """Return the table's rows, in the order of the peers, of those that were tried."""
    return [_row(peer, answers) for peer in PEERS.values() if (answers := answers_of(peer))]


def _row(peer: Peer, scripts: Mapping[str, Mapping[str, Any]]) -> Row:
    answers = {tuple(key.split(": ", 1)): answer for key, answer in scripts.items()}
    tried = {key: answer for key, answer in answers.items() if not answer["problem"]}
    new = {name: _beyond_healthy(name, answers) for kind, name in tried if kind == BUG}
    named = {name for name, said in new.items() if any(names_cause(name, message) for message in said)}
    return Row(
        peer=peer,
        bugs=len(new),
        named=tuple(name for name in new if name in named),
        flagged=tuple(name for name, said in new.items() if said and name not in named),
        healthy=sum(kind == GOOD for kind, _ in tried),
        healthy_flagged=tuple(name for (kind, name), answer in tried.items() if kind == GOOD and answer["said"]),
        cpu_seconds=median([answer["cpu_seconds"] for answer in tried.values()] or [0.0]),
        problems={name: answer["problem"] for (_, name), answer in answers.items() if answer["problem"]},
    )


def _beyond_healthy(name: str, answers: Mapping[tuple[str, ...], Mapping[str, Any]]) -> list[str]:
    """Return what is said of the mistake and not of the healthy script that it is made in."""
    known = {plain(message) for message in answers.get((GOOD, base_of(name)), {"said": ()})["said"]}
    return [message for message in answers[(BUG, name)]["said"] if plain(message) not in known]


def names_cause(name: str, message: str) -> bool:
    """Return whether this message names the mistake: by the check that is about it, or by a word of its cause."""
    return message.startswith("NAMED ") or re.search(CAUSES[name], message, re.IGNORECASE) is not None


def plain(message: str) -> str:
    """Return the message with every measured number as '#'; those of names, such as layers.1, stay."""
    return re.sub(r"(?<![\w.])[-+]?\d+(\.\d+)?(e[-+]?\d+)?%?(?![\w.]*\w)", "#", message)
