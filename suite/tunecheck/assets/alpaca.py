"""Alpaca's JSON list of {"instruction", "input", "output"} as two splits that share no text."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from tunecheck.config.schema import HubRows
from tunecheck.core.errors import DataError

FRAME_TOKENS = 64
"""Tokens reserved in a row for the template and its special tokens: alpaca's has 33 characters, SmolLM2's chat template
30 tokens with its system prompt."""

Pair = tuple[str, str]
"""Instruction and response."""


class Splits(NamedTuple):
    """Rows for training, held-out rows, and notes on the rows that were left out."""

    train: tuple[Pair, ...]
    heldout: tuple[Pair, ...]
    notes: tuple[str, ...]


def longest_row_bytes(max_length: int) -> int:
    """Return the UTF-8 bytes, instruction and response together, that fit into max_length tokens with the template.

    In the worst case a byte is one token, for every tokenizer with byte fallback: those of all our models have it, and
    the one of random weights encodes bytes only.
    """
    return max_length - FRAME_TOKENS


def as_lines(pairs: tuple[Pair, ...]) -> str:
    """Return the rows as JSON lines, the format that `read_rows` reads."""
    rows = ({"instruction": instruction, "response": response} for instruction, response in pairs)
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def splits(records: Any, hub: HubRows, max_length: int) -> Splits:
    """Split the rows that `hub` requests, in the order of their instructions' digests: the first ones are held out.

    So the choice is the same on every machine and independent of the file's order, and more training rows leave the
    held-out ones unchanged. Raises DataError for a file that is not such a list, and for too few rows.
    """
    left_out: Counter[str] = Counter()
    pairs = sorted(_usable(_pairs(records, hub), longest_row_bytes(max_length), left_out), key=_order)
    heldout = pairs[: hub.heldout_rows]
    held = {_plain(text) for pair in heldout for text in pair}
    free = [pair for pair in pairs[hub.heldout_rows :] if held.isdisjoint(map(_plain, pair))]
    left_out["with a text of the held-out rows"] += len(pairs) - len(heldout) - len(free)
    told = [f"{count:,} {why}" for why, count in left_out.items() if count]
    note = f"{len(records):,} rows in the file; left out: {', '.join(told) or 'none'}"
    if len(heldout) + len(free) < hub.heldout_rows + hub.rows:
        raise DataError(
            f"{_where(hub)}: {hub.rows} + {hub.heldout_rows} rows are requested (data.hub.rows, data.hub.heldout_rows) "
            f"but only {len(heldout) + len(free)} can be used: {note}. "
            "What to do: request fewer, or raise data.max_length."
        )
    return Splits(train=tuple(free[: hub.rows]), heldout=tuple(heldout), notes=(note,))


def _pairs(records: Any, hub: HubRows) -> Iterator[Pair]:
    if not isinstance(records, list):
        raise DataError(f"{_where(hub)}: a list of rows is expected, it holds {type(records).__name__}")
    for number, record in enumerate(records):
        texts = [record.get(key, "") for key in ("instruction", "input", "output")] if isinstance(record, dict) else []
        if (
            not texts
            or not all(isinstance(text, str) for text in texts)
            or not {"instruction", "output"} <= set(record)
        ):
            raise DataError(
                f"{_where(hub)}: row {number} is not an object with the texts instruction, output and, where there is "
                f"one, input: {str(record)[:60]!r}. What to do: name another file in data.hub.file."
            )
        instruction, extra, output = texts
        yield f"{instruction}\n\n{extra}" if extra.strip() else instruction, output


def _usable(pairs: Iterator[Pair], longest_bytes: int, left_out: Counter[str]) -> Iterator[Pair]:
    """Yield the pairs that can become rows, each instruction once; count the others by reason."""
    seen: set[str] = set()
    for pair in pairs:
        if not all(map(_is_text, pair)):
            left_out["without instruction or output"] += 1
        elif sum(len(text.encode()) for text in pair) > longest_bytes:
            left_out[f"longer than {longest_bytes} bytes"] += 1
        elif (asked := _plain(pair[0])) in seen:
            left_out["with a repeated instruction"] += 1
        else:
            seen.add(asked)
            yield pair


def _is_text(text: str) -> bool:
    """Return whether the text is not blank and encodes as UTF-8, which JSON's lone surrogates do not."""
    try:
        return bool(text.strip() and text.encode())
    except UnicodeEncodeError:
        return False


def _plain(text: str) -> str:
    """Return the text normalised for comparison; the probe that audits the splits has its own."""
    return " ".join(text.casefold().split())


def _order(pair: Pair) -> str:
    return hashlib.sha256(_plain(pair[0]).encode()).hexdigest()


def _where(hub: HubRows) -> str:
    return f"{hub.id}/{hub.file} at {hub.revision[:12]}"
