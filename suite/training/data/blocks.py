"""Plain text as training rows: the texts in a row, cut into blocks of one length, every token supervised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from suite.core.errors import DataError
from suite.core.reading import ROWS_BYTES, parse_json, read_text
from suite.training.data.rows import require_text
from suite.training.data.template import IGNORED, Tokens


def blocks(path: Path, split: str, length: int, tokenizer: Any) -> list[Tokens]:
    """The file's texts, a space between them, as blocks of `length` tokens; what is left at the end is dropped.

    No special token is added. The first token of a block has none before it that would tell it, so it is not
    supervised. Raises DataError with file and line for what is no text, and for a file of less than one block.
    """
    ids = tokenizer(" ".join(read_texts(path)), add_special_tokens=False)["input_ids"]
    cut = [tuple(ids[at : at + length]) for at in range(0, len(ids) - length + 1, length)]
    if not cut:
        raise DataError(f"{path}: {len(ids)} tokens, less than one block of data.max_length {length}: add text")
    return [Tokens(f"{split}:{number}", block, (IGNORED, *block[1:])) for number, block in enumerate(cut)]


def read_texts(path: Path) -> list[str]:
    """The text of every line. Raises DataError with file and line."""
    try:
        lines = read_text(path, ROWS_BYTES).removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"{path}: cannot be read: {reason}") from error
    return [_text(f"{path}:{number}", line) for number, line in enumerate(lines, start=1)]


def _text(where: str, line: str) -> str:
    try:
        record = parse_json(line)
    except ValueError as error:
        raise DataError(f'{where}: not JSON: {error}; a line of template blocks is {{"text": ...}}') from error
    if not isinstance(record, dict) or record.keys() != {"text"}:
        raise DataError(f'{where}: a line of template blocks is {{"text": ...}} and nothing else')
    if not isinstance(record["text"], str) or not record["text"].strip():
        raise DataError(f"{where}: text must be text and not blank")
    require_text(where, record["text"])
    return record["text"]
