"""Nodes that should take no further jobs, as text for Slurm's own commands and as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tunecheck.core.files import write_whole
from tunecheck.core.text import one_line
from tunecheck.results.fleet import FleetReport

DRAIN_TEXT, DRAIN_JSON = "drain.txt", "drain.json"
LONGEST_REASON = 300
NODE_NAME = re.compile(r"(?!ALL$)[A-Za-z0-9][A-Za-z0-9._-]{0,252}", re.ASCII)
"""One node in Slurm's notation: neither a list, nor ALL, nor what a shell would read as more."""


def reasons(report: FleetReport) -> dict[str, list[dict[str, str | int | None]]]:
    """Return the nodes to drain, each with its places and why."""
    found: dict[str, list[dict[str, str | int | None]]] = {}
    for row in report.rows:
        if row.drain:
            why: dict[str, str | int | None] = {
                "place": row.place,
                "card": row.card,
                "reason": one_line(row.drain, LONGEST_REASON),
            }
            found.setdefault(row.node, []).append(why)
    return found


def write_drain(report: FleetReport, folder: Path) -> tuple[Path, Path]:
    """Write drain.txt and drain.json. Raises SuiteError when the folder cannot be written.

    The text is one line of names with commas between them: what `sinfo -n`, `scontrol update nodename=` and
    `sbatch --exclude` take. It is empty where nobody is to be drained, and lacks what is no name of a node.
    """
    found = reasons(report)
    named = [node for node in found if NODE_NAME.fullmatch(node)]
    text, machine = folder / DRAIN_TEXT, folder / DRAIN_JSON
    write_whole(text, ",".join(named) + "\n" if named else "")
    held = {"schema": 1, "nodes": [{"node": node, "places": why} for node, why in found.items()]}
    write_whole(machine, json.dumps(held, indent=1, ensure_ascii=False) + "\n")
    return text, machine
