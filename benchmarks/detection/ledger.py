"""Results of a study, written row by row so that an interrupted study continues: one JSON file, a row a line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tunecheck.core.errors import SuiteError
from tunecheck.core.files import write_whole
from tunecheck.core.paths import project_folder
from tunecheck.core.trace import spelled

SCHEMA = 2
RENAMED = {"class": "subject", "accused": "flagged", "naive": "smoke_test_failed", "naive_alarm": "smoke_test_failed"}
"""Keys of schema 1, whose `class` was the file that held the bug, and today's."""
IRRELEVANT = ("cli", "hardware", "history", "memory", "plugin.py", "report", "results", "session")
"""What below suite/ cannot change whether a check fails."""
RECORDED_VERSIONS = ("torch", "transformers", "peft", "bitsandbytes")

Row = dict[str, Any]


@dataclass(slots=True)
class Ledger:
    """Rows by their id, on disk after every change."""

    path: Path
    kind: str
    """What the rows are: "matrix tiny", "healthy real-bf16", ..."""
    rows: dict[str, Row] = field(default_factory=dict)
    machine: Row = field(default_factory=dict)

    def put(self, row: Row) -> None:
        """Write the row in place of an older one of its id, with today's date and the code's state."""
        day = datetime.now(UTC).date().isoformat()
        self.rows[row["id"]] = {**row, "date": day, "code": code_state()}
        self.save(self.rows)

    def save(self, order: Iterable[str]) -> None:
        """Write the rows of these ids in this order, and no others."""
        kept = {number: self.rows[number] for number in order if number in self.rows}
        lines = ",\n".join(json.dumps(spelled(row), ensure_ascii=False) for row in kept.values())
        head = json.dumps({"schema": SCHEMA, "kind": self.kind, "machine": self.machine}, ensure_ascii=False)
        write_whole(self.path, f'{head[:-1]}, "rows": [\n{lines}\n]}}\n')
        self.rows = kept

    def missing(self, numbers: Iterable[str], *, keep_older: bool) -> list[str]:
        """Return the ids without a row, or with one from another state of the code."""
        now = code_state()
        done = {number for number, row in self.rows.items() if keep_older or row["code"] == now}
        return [number for number in numbers if number not in done]


def open_ledger(path: Path, kind: str) -> Ledger:
    """Return the ledger in this file, a new one if it does not exist. Raises SuiteError for a file of another kind."""
    if not path.exists():
        return Ledger(path, kind, machine=machine())
    held = read_results(path)
    if held["kind"] != kind:
        raise SuiteError(f"{path}: holds {held['kind']!r}, not {kind!r}: name another folder with --output")
    return Ledger(path, kind, {row["id"]: row for row in held["rows"]}, machine())


def read_results(path: Path) -> Row:
    """Return what a ledger wrote, in today's keys. Raises SuiteError for a file that is none or cannot be read."""
    try:
        held: Row = json.loads(path.read_text(encoding="utf-8"))
        if held["schema"] in (1, SCHEMA) and all(row["id"] and row["code"] for row in held["rows"]):
            return {**held, "rows": [_renamed(row) for row in held["rows"]]} if held["schema"] == 1 else held
        problem = f"schema {held['schema']}, this tunecheck reads 1 and {SCHEMA}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"{type(error).__name__}: {error}"
    raise SuiteError(
        f"{path}: not a result of `python -m benchmarks.detection`: {problem}; delete it or name another folder"
    )


def _renamed(row: Row) -> Row:
    stages = {"stages": [_renamed(stage) for stage in row["stages"]]} if "stages" in row else {}
    return {RENAMED.get(key, key): value for key, value in row.items()} | stages


def code_state() -> str:
    """Return a digest (12 hex digits) of the code and configuration that decide what a trial finds."""
    project = project_folder()
    suite = project / "suite" / "tunecheck"
    files = [p for p in suite.rglob("*.py") if p.relative_to(suite).parts[0] not in IRRELEVANT]
    files += (project / "benchmarks" / "detection" / "bugs").rglob("*.py")
    files += [
        p for tier in ("quick", "convergence", "models", "data") for p in (project / "configs" / tier).rglob("*.*")
    ]
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(str(path.relative_to(project)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def machine() -> Row:
    """Return the machine and versions that the results were measured on."""
    from tunecheck.hardware import probe

    hardware = probe()
    return {
        "cpu": f"{hardware.cpu.usable_cores} cores of {hardware.cpu.model}",
        "python": hardware.python,
        "platform": hardware.platform,
        "versions": {name: hardware.versions[name] for name in RECORDED_VERSIONS},
        "commit": hardware.git.commit[:12] if hardware.git and hardware.git.commit else "",
    }
