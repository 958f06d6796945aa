"""Where the weights and the rows of a run came from, in words."""

from __future__ import annotations

from typing import TypeVar

from suite.evidence import Dataset, Record, Weights
from suite.trace import Attempt

R = TypeVar("R", bound=Record)


def weights_words(main: Attempt | None) -> str:
    """Source, identifier@revision, the start of the digest, pretrained or random; empty where none were found."""
    if (last := _last(main, Weights)) is None:
        return ""
    kind = "pretrained" if last.pretrained else "random"
    parts = (last.source, _pinned(last.identifier, last.revision), last.sha256[:12], kind)
    # Random weights name themselves twice: their source is "random" too.
    return " ".join(part for part in dict.fromkeys(parts) if part)


def data_words(main: Attempt | None) -> str:
    """Source, identifier@revision, the start of the digest, numbers of rows; empty where none were found."""
    if (last := _last(main, Dataset)) is None:
        return ""
    rows = f"{last.rows} + {last.heldout_rows} rows"
    return f"{last.source} {_pinned(last.identifier, last.revision)} {last.sha256[:12]} {rows}"


def data_instead_of(main: Attempt | None) -> str:
    """The hub's rows that were asked for and its answer, where others were used; else empty."""
    last = _last(main, Dataset)
    return last.instead_of if last else ""


def repairs(main: Attempt | None) -> tuple[str, ...]:
    """When and why damaged weights or rows were replaced by fresh ones."""
    found = (_last(main, Weights), _last(main, Dataset))
    return tuple(repair for record in found if record for repair in record.repairs)


def _last(main: Attempt | None, kind: type[R]) -> R | None:
    found = main.all(kind) if main else []
    return found[-1] if found else None


def _pinned(identifier: str, revision: str) -> str:
    return f"{identifier}@{revision}" if revision else identifier
