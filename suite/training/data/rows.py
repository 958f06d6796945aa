"""Rows of an instruction data set, read from JSON lines."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

from suite.core.errors import DataError
from suite.core.reading import ROWS_BYTES, open_file, parse_json


@dataclass(frozen=True, slots=True)
class Row:
    """One instruction with its answer."""

    key: str
    """Split and line number, from 0: "train:17"."""
    instruction: str
    response: str


def read_rows(path: Path, split: str) -> list[Row]:
    """All rows of this file.

    Raises DataError with file and line for anything that is not a row, and for an empty file.
    """
    try:
        # str.splitlines would cut a row at a U+2028 in its text
        with open_file(path, ROWS_BYTES) as file, io.TextIOWrapper(file, encoding="utf-8") as lines:
            rows = [_row(path, number, line, split) for number, line in enumerate(lines)]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"{path}: cannot be read: {reason}") from error
    if not rows:
        raise DataError(f"{path}: no rows; one JSON object a line is expected")
    return rows


def _row(path: Path, number: int, line: str, split: str) -> Row:
    where = f"{path}:{number + 1}"
    if not line.strip():
        raise DataError(f"{where}: blank line; every line is a row")
    try:
        record = parse_json(line)
    except ValueError as error:
        raise DataError(f"{where}: not JSON: {error}; a row is one JSON object on one line") from error
    if not isinstance(record, dict) or record.keys() != {"instruction", "response"}:
        raise DataError(f'{where}: a row is {{"instruction": ..., "response": ...}} and nothing else')
    if not all(isinstance(value, str) and value.strip() for value in record.values()):
        raise DataError(f"{where}: instruction and response must be text and not blank")
    require_text(where, *record.values())
    return Row(f"{split}:{number}", record["instruction"], record["response"])


def require_text(where: str, *texts: str) -> None:
    """Raise DataError for half of a surrogate pair: JSON can spell it, but it is no character, and no tokenizer's."""
    for text in texts:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            half = f"\\u{ord(text[error.start]):04x}"
            raise DataError(
                f"{where}: {half} at character {error.start + 1} is half of a surrogate pair: write the whole character"
            ) from None
