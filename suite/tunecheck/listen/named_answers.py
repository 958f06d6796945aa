"""What a script's data call chosen and rejected, before the script renames, maps or collates any of it."""

import gc
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

WORDS = (
    *(("chosen", "rejected"), ("preferred", "dispreferred"), ("preferred", "rejected"), ("accepted", "rejected")),
    *(("better", "worse"), ("good", "bad"), ("winner", "loser"), ("winning", "losing"), ("positive", "negative")),
)
"""What two columns are called of which the first one holds the better answers."""
MOST_DATA_SETS, MOST_BATCHES, MOST_ROWS = 4, 32, 20_000
"""Data sets whose columns are named so, the first ones that the script makes, batches, and rows of each."""
KEY = 12
"""Characters, without spaces, from where two answers begin to differ: by them a row is told to hold one of them."""
Decode = Callable[[list[list[int]]], list[str]]
_made: list[tuple[list[str], Any]] = []
"""Names of two columns, and the table that holds them."""
_batches: list[tuple[list[str], Any]] = []
"""The same of the first batches, whose names a collator may have exchanged."""
_YIELDED = count()


def data_set_made(dataset: Any, *_: Any, **__: Any) -> Any:
    """A data set of the library datasets is about to be made. Return what notes it, if its columns are named so."""

    def made(_result: None) -> None:
        if len(_made) < MOST_DATA_SETS and (names := _named(dataset.column_names)):
            _made.append((names, dataset.data.table.select(names)))

    return made


def batch_yielded(_iterator: Any) -> Callable[[Any], None] | None:
    """A loader is about to yield one of its first batches. Return what notes its tokens, if tensors are named so."""
    if len(_batches) >= MOST_BATCHES or next(_YIELDED) >= 8 * MOST_BATCHES:
        return None

    def yielded(batch: Any) -> None:
        names = _named([*batch]) if isinstance(batch, Mapping) else None
        if names and all(getattr(batch[name], "ndim", 0) == 2 for name in names):
            pairs = zip(*(batch[name].tolist() for name in names), strict=False)
            _batches.append((names, tuple(dict(zip(names, pair, strict=True)) for pair in pairs)))

    return yielded


def answers_named(*, searched: bool, decode: Decode) -> tuple[Callable[[str], bool | None], str] | None:
    """Return what tells whether a text holds an answer that the data call the better one, None of others; and where.

    None where no data set has such names. `searched` looks at the interpreter's lists, too; `decode` reads token ids.
    """
    holders = [*_made]
    _made.clear()
    if searched and not holders:
        rows = [each for each in gc.get_objects() if type(each) is list and each]
        named = [(names, each) for each in rows if (names := _named([*_fields(each[0])]))]
        holders = sorted(named, key=lambda pair: -len(pair[1]))[:MOST_DATA_SETS]
    holders += [(names, [*rows]) for names, rows in _batches]
    _batches.clear()
    better: dict[str, bool | None] = {}
    for (good, bad), rows in holders:
        own: dict[str, bool | None] = {}
        for pair in _pairs(rows, good, bad, decode):
            for key, is_better in zip(pair, (True, False), strict=True):
                own[key] = is_better if own.get(key, is_better) is is_better else None
        better = {**own, **better}  # what was made first was not made of the others
    where = " and ".join(dict.fromkeys(f"{good!r} and {bad!r}" for (good, bad), _ in holders))
    return (lambda text: _told(text, better), where) if better else None


def _told(text: str, better: Mapping[str, bool | None]) -> bool | None:
    """Return what holds of all answers that begin to differ in this text; None where it is not one thing."""
    plain = "".join(text.split())
    keys = {plain[at : at + KEY] for at in range(len(plain) - KEY + 1)} & better.keys()
    return told.pop() if len(told := {better[key] for key in keys}) == 1 else None


def _fields(row: Any) -> Mapping[str, Any]:
    """Return the columns of a row, which may be an object of a dataclass or of pydantic; nothing of other objects."""
    known = hasattr(type(row), "__dataclass_fields__") or hasattr(type(row), "__pydantic_fields__")
    return row if type(row) is dict else vars(row) if known and hasattr(row, "__dict__") else {}


def _named(columns: Sequence[str]) -> list[str] | None:
    """Return two of these names that differ by one word alone, of which the first one names the better answers."""
    for good, bad in WORDS:
        for name in filter(lambda column: isinstance(column, str), columns):
            if (other := re.sub(rf"(?<![a-z]){good}(?![a-z])", bad, name)) != name and other in columns:
                return [name, other]
    return None


def _pairs(rows: Any, good: str, bad: str, decode: Decode) -> Iterator[tuple[str, str]]:
    """Yield the keys of both answers of each row, of a table of Arrow's or a list."""
    if isinstance(rows, list):
        columns: Any = ([_fields(row).get(name) for row in rows[:MOST_ROWS]] for name in (good, bad))
    else:
        columns = (rows.column(name)[:MOST_ROWS].to_pylist() for name in (good, bad))
    for answers in zip(*columns, strict=True):
        one, other = ("".join(_text(answer, decode).split()) for answer in answers)
        at = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        keys = one[at : at + KEY], other[at : at + KEY]
        if all(len(key) == KEY for key in keys):
            yield keys


def _text(answer: Any, decode: Decode) -> str:
    """Return an answer's text: of a chat, that of its last turn."""
    if isinstance(answer, list) and answer and all(type(token) is int for token in answer):
        return decode([answer])[0]
    if isinstance(answer, list) and answer:
        answer = answer[-1]
    if isinstance(answer, dict):
        answer = answer.get("content", answer.get("value"))
    return answer if isinstance(answer, str) else ""
