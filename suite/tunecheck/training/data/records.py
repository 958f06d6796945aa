"""Files of JSON lines: one reader for rows of every kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tunecheck.core.errors import DataError
from tunecheck.core.reading import ROWS_BYTES, open_file, parse_json

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""What editors of Windows begin a file with."""


def read_records(path: Path, *keys: str) -> list[dict[str, str]]:
    """Return the rows of a file, each an object with these keys and a text under each.

    Raises DataError with file and line for anything else, and for an empty file.
    """
    try:
        with open_file(path, ROWS_BYTES) as file:  # lines of bytes: str.splitlines would cut a text at its U+2028
            records = [_record(f"{path}:{number}", line, keys) for number, line in enumerate(file, start=1)]
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    if not records:
        raise DataError(f"{path}: no rows; one JSON object a line is expected")
    return records


def _record(where: str, line: bytes, keys: tuple[str, ...]) -> dict[str, str]:
    if where.endswith(":1"):
        line = line.removeprefix(BYTE_ORDER_MARK)
    if not line.strip():
        raise DataError(f"{where}: blank line; every line is a row")
    try:
        text = line.decode("utf-8")
        record = parse_json(text, unique=True)
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8: byte {error.start + 1} of the line is {line[error.start]:#x}") from error
    except ValueError as error:
        raise DataError(f"{where}: not JSON: {error}; a row is one JSON object on one line") from error
    if not isinstance(record, dict) or record.keys() != set(keys):
        shape = ", ".join(f"{json.dumps(key)}: ..." for key in keys)
        raise DataError(f"{where}: a row is {{{shape}}} and nothing else")
    if not all(isinstance(value, str) and value.strip() for value in record.values()):
        raise DataError(f"{where}: {' and '.join(keys)} must be text and not blank")
    _require_characters(where, record)
    return record


def _require_characters(where: str, record: dict[str, Any]) -> None:
    """Raise DataError for half of a surrogate pair: JSON can spell it, but it is no character, and no tokenizer's."""
    for text in record.values():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            half = f"\\u{ord(text[error.start]):04x}"
            raise DataError(
                f"{where}: {half} at character {error.start + 1} is half of a surrogate pair: write the whole character"
            ) from None
