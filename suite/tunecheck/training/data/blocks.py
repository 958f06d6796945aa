"""Plain text as training rows: the texts in a row, cut into blocks of one length, every token supervised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tunecheck.core.errors import DataError
from tunecheck.core.records import TEXT, read_records
from tunecheck.training.data.template import IGNORED, Tokens


def blocks(path: Path, split: str, length: int, tokenizer: Any) -> list[Tokens]:
    """The file's texts, a space between them, as blocks of `length` tokens; what is left at the end is dropped.

    No special token is added. The first token of a block has none before it that would tell it, so it is not
    supervised. Raises BadRow with file and line for what is no text, and DataError for a file of less than one block.
    """
    ids = tokenizer(" ".join(read_texts(path)), add_special_tokens=False)["input_ids"]
    cut = [tuple(ids[at : at + length]) for at in range(0, len(ids) - length + 1, length)]
    if not cut:
        raise DataError(f"{path}: {len(ids)} tokens, less than one block of data.max_length {length}: add text")
    return [Tokens(f"{split}:{number}", block, (IGNORED, *block[1:])) for number, block in enumerate(cut)]


def read_texts(path: Path) -> list[str]:
    """Return the text of every line. Raises DataError with file and line."""
    return [record["text"] for record in read_records(path, *TEXT)]
