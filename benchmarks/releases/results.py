"""What was measured of the pairs of releases, as committed."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.releases.pairs import PAIRS
from tunecheck.core.files import write_whole
from tunecheck.core.paths import project_folder

RESULTS = project_folder() / "reports" / "releases" / "pairs.json"


def record(row: dict[str, Any]) -> None:
    """Put the row into the results, in the order of the pairs."""
    held = {r["name"]: r for r in pairs_of_releases()}
    held[row["name"]] = row
    rows = [held[name] for name in PAIRS if name in held]
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    write_whole(RESULTS, json.dumps(rows, indent=1) + "\n")


def pairs_of_releases() -> list[dict[str, Any]]:
    """Return the rows that were measured."""
    held: list[dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    return held
