"""How much of the texts tokenizers cut off, from the script's first call on. Imports nothing of its own."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from tunecheck.core.evidence import TextsCut

MOST_TEXTS = 4096
"""Texts of each length limit that are looked at."""
_SEEN: dict[int, TextsCut] = {}
"""Length limit to what was cut off at it."""


def encoding(
    _tokenizer: Any,
    *_: Any,
    truncation: Any = None,
    max_length: int | None = None,
    return_overflowing_tokens: bool = False,
    **__: Any,
) -> Callable[[Any], None] | None:
    """A tokenizer is called. Return what notes how many of its tokens it cuts off; a slow one does not tell."""
    before = _SEEN.get(max_length or 0, TextsCut(max_length=max_length or 0))
    if not truncation or truncation == "do_not_truncate" or return_overflowing_tokens or before.texts >= MOST_TEXTS:
        return None

    def encoded(out: Any) -> None:
        texts = [*islice(getattr(out, "encodings", None) or (), MOST_TEXTS - before.texts)]
        lost = [sum(sum(part.attention_mask) for part in text.overflowing) for text in texts]
        _SEEN[before.max_length] = TextsCut(
            max_length=before.max_length,
            texts=before.texts + len(texts),
            cut=before.cut + sum(map(bool, lost)),
            kept_tokens=before.kept_tokens + sum(sum(text.attention_mask) for text in texts),
            lost_tokens=before.lost_tokens + sum(lost),
        )

    return encoded


def texts_cut() -> Iterator[TextsCut]:
    """Yield what was cut off so far at each length limit, and forget it."""
    while _SEEN:
        yield _SEEN.popitem()[1]
