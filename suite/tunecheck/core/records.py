"""Files of JSON lines: one reader for rows of every kind."""

import codecs
import json
import os
from functools import lru_cache
from pathlib import Path

from tunecheck.core.errors import BadRow, DataError
from tunecheck.core.files import ROWS_BYTES, open_file, parse_json
from tunecheck.core.text import one_line

INSTRUCTION, TEXT = ("instruction", "response"), ("text",)
"""Keys of a row to answer, and of one of running text."""
BEFOREHAND_BYTES = 2**24
"""Bytes of a file whose rows are read when its run is loaded: 20 MiB take a second. The rest waits for the training."""


def read_records(path: Path, *keys: str) -> list[dict[str, str]]:
    """Return the rows of a file, objects with a text under each key. Raises BadRow with file and line, or DataError."""
    try:
        with open_file(path, ROWS_BYTES) as file:  # lines of bytes: str.splitlines would cut a text at its U+2028
            records = [_record(f"{path}:{number}", line, keys) for number, line in enumerate(file, start=1)]
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    if not records:
        raise BadRow(f"{path}: no rows; one JSON object a line is expected")
    return records


def count_rows(path: Path, keys: tuple[str, ...], enough: int) -> int | None:
    """Count a file's rows, up to `enough` at least, and read the first as `read_records`. None where it cannot."""
    try:
        return _count(path, keys, enough, os.stat(path).st_mtime_ns)
    except (OSError, ValueError):
        return None


@lru_cache(maxsize=64)  # many runs have the same rows
def _count(path: Path, keys: tuple[str, ...], enough: int, changed_ns: int) -> int:
    number, left = 0, BEFOREHAND_BYTES
    with open_file(path, ROWS_BYTES) as file:
        for number, line in enumerate(file, start=1):
            left -= len(line)
            if left > 0:
                _record(f"{path}:{number}", line, keys)
            elif number >= enough:
                break
    if not number:
        raise BadRow(f"{path}: no rows; one JSON object a line is expected")
    return number


def _record(where: str, line: bytes, keys: tuple[str, ...]) -> dict[str, str]:
    if where.endswith(":1"):
        line = line.removeprefix(codecs.BOM_UTF8)  # which editors of Windows begin a file with
    if not line.strip():
        raise BadRow(f"{where}: blank line; every line is a row")
    try:
        text = line.decode("utf-8")
        record = parse_json(text, unique=True)
    except UnicodeDecodeError as error:
        raise BadRow(f"{where}: not UTF-8: byte {error.start + 1} of the line is {line[error.start]:#x}") from error
    except ValueError as error:
        raise BadRow(f"{where}: not JSON: {error}; a row is one JSON object on one line") from error
    if not isinstance(record, dict) or record.keys() != set(keys):
        shape = ", ".join(f"{json.dumps(key)}: ..." for key in keys)
        given = ", ".join(map(json.dumps, record)) if isinstance(record, dict) else type(record).__name__
        chat = "; write a chat's last answer as response, what was said before as instruction"
        hint = chat if isinstance(record, dict) and {"messages", "conversations"} & record.keys() else ""
        raise BadRow(f"{where}: a row is {{{shape}}} and nothing else (got {one_line(given, 100)}){hint}")
    if not all(isinstance(value, str) and value.strip() for value in record.values()):
        raise BadRow(f"{where}: {' and '.join(keys)} must be text and not blank")
    for text in record.values():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:  # JSON can spell half a pair, but it is no character, and no tokenizer's
            half = f"\\u{ord(text[error.start]):04x} at character {error.start + 1}"
            raise BadRow(f"{where}: {half} is half of a surrogate pair: write the whole character") from None
    return record
