"""Rows of an instruction data set, read from JSON lines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tunecheck.core.records import INSTRUCTION, read_records


@dataclass(frozen=True, slots=True)
class Row:
    """One instruction with its answer."""

    key: str
    """Split and line number, from 0: "train:17"."""
    instruction: str
    response: str


def read_rows(path: Path, split: str) -> list[Row]:
    """Return all rows of this file.

    Raises BadRow with file and line for anything that is not a row, and for an empty file.
    """
    records = read_records(path, *INSTRUCTION)
    return [Row(f"{split}:{number}", **record) for number, record in enumerate(records)]
