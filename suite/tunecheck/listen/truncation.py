"""How much of the texts tokenizers cut off, from the script's first call on. Imports nothing of its own."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tunecheck.core.evidence import TextsCut

MOST_TEXTS, MOST_TOKENS = 512, 1 << 20
"""That are looked at for each length limit: a tokenizer copies all that it cuts off of a book."""
_SEEN: dict[int, TextsCut] = {}
"""Length limit to what was cut off at it."""


def encoding(_tokenizer: Any, *_: Any, **given: Any) -> Callable[[Any], None] | None:
    """A tokenizer is called. Return what notes how many of its tokens it cuts off; a slow one does not tell."""
    cuts, length = given.get("truncation"), given.get("max_length") or 0
    seen = _SEEN.get(length, TextsCut(max_length=length))
    enough = seen.texts >= MOST_TEXTS or seen.kept_tokens + seen.lost_tokens >= MOST_TOKENS
    if not cuts or cuts == "do_not_truncate" or given.get("return_overflowing_tokens") or enough:
        return None

    def encoded(out: Any) -> None:
        texts, cut, kept, lost = seen.texts, seen.cut, seen.kept_tokens, seen.lost_tokens
        for text in getattr(out, "encodings", None) or ():
            if texts >= MOST_TEXTS or kept + lost >= MOST_TOKENS:
                break
            gone = sum(sum(part.attention_mask) for part in text.overflowing)
            texts, cut, kept, lost = texts + 1, cut + bool(gone), kept + sum(text.attention_mask), lost + gone
        _SEEN[seen.max_length] = replace(seen, texts=texts, cut=cut, kept_tokens=kept, lost_tokens=lost)

    return encoded


def texts_cut() -> Iterator[TextsCut]:
    """Yield what was cut off so far at each length limit, and forget it."""
    while _SEEN:
        yield _SEEN.popitem()[1]
