"""Results that are written as they come and can be gone on with: one JSON file, a row a line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from suite.core.errors import SuiteError
from suite.core.files import write_whole
from suite.core.paths import project_folder
from suite.core.trace import spelled

SCHEMA = 1
DOES_NOT_DECIDE = ("cli", "hardware", "history", "memory", "plugin.py", "report", "results", "session")
"""What below suite/ has no say in whether a check fails on a CPU."""
TOLD_OF_VERSIONS = ("torch", "transformers", "peft", "bitsandbytes")

Row = dict[str, Any]


@dataclass(slots=True)
class Ledger:
    """Rows by their id, on disk after every change."""

    path: Path
    kind: str
    """What the rows are: "matrix tiny", "healthy real", ..."""
    rows: dict[str, Row] = field(default_factory=dict)
    machine: Row = field(default_factory=dict)

    def put(self, row: Row) -> None:
        """The row is in the file, in the place of an older one of its id, with today's date and the code's state."""
        day = datetime.now(UTC).date().isoformat()
        self.rows[row["id"]] = {**row, "date": day, "code": code_state()}
        self.save(self.rows)

    def save(self, order: Iterable[str]) -> None:
        """The file holds the rows of these ids in this order, and no others."""
        kept = {number: self.rows[number] for number in order if number in self.rows}
        lines = ",\n".join(json.dumps(spelled(row), ensure_ascii=False) for row in kept.values())
        head = json.dumps({"schema": SCHEMA, "kind": self.kind, "machine": self.machine}, ensure_ascii=False)
        write_whole(self.path, f'{head[:-1]}, "rows": [\n{lines}\n]}}\n')
        self.rows = kept

    def missing(self, numbers: Iterable[str], *, keep_older: bool) -> list[str]:
        """Ids that have no row yet, or only one that another state of the code gave."""
        now = code_state()
        done = {number for number, row in self.rows.items() if keep_older or row["code"] == now}
        return [number for number in numbers if number not in done]


def open_ledger(path: Path, kind: str) -> Ledger:
    """The ledger in this file, new when there is none. Raises SuiteError for a file that holds something else."""
    if not path.exists():
        return Ledger(path, kind, machine=machine())
    held = read_results(path)
    if held["kind"] != kind:
        raise SuiteError(f"{path}: holds {held['kind']!r}, not {kind!r}: name another folder with --output")
    return Ledger(path, kind, {row["id"]: row for row in held["rows"]}, machine())


def read_results(path: Path) -> Row:
    """What a ledger wrote. Raises SuiteError for a file that is none or cannot be read."""
    try:
        held: Row = json.loads(path.read_text(encoding="utf-8"))
        if held["schema"] == SCHEMA and all(row["id"] and row["code"] for row in held["rows"]):
            return held
        problem = f"schema {held['schema']}, this tunecheck reads {SCHEMA}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"{type(error).__name__}: {error}"
    raise SuiteError(
        f"{path}: no results of `python -m benchmarks.detection`: {problem}; delete it or name another folder"
    )


def code_state() -> str:
    """Digest (12 hex digits) of all code and configuration that decides what a trial finds."""
    project = project_folder()
    suite = project / "suite"
    files = [p for p in suite.rglob("*.py") if p.relative_to(suite).parts[0] not in DOES_NOT_DECIDE]
    files += (project / "benchmarks" / "detection" / "bugs").rglob("*.py")
    files += [
        p for tier in ("quick", "convergence", "models", "data") for p in (project / "configs" / tier).rglob("*.*")
    ]
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(str(path.relative_to(project)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def machine() -> Row:
    """What the results were taken on."""
    from suite.hardware import probe

    hardware = probe()
    return {
        "cpu": f"{hardware.cpu.usable_cores} cores of {hardware.cpu.model}",
        "python": hardware.python,
        "platform": hardware.platform,
        "versions": {name: hardware.versions[name] for name in TOLD_OF_VERSIONS},
        "commit": hardware.git.commit[:12] if hardware.git and hardware.git.commit else "",
    }
