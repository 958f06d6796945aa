"""Where the weights and the rows of a run came from and what it trained on, in words."""

from __future__ import annotations

from typing import TypeVar

from suite.core.evidence import Dataset, Record, Setup, Weights
from suite.core.trace import Attempt

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


def asked_device(attempt: Attempt) -> str:
    """The device that an attempt was given, with its rung and cap."""
    return f"{attempt.start.device}{_rung(attempt)}{_capped(attempt.start.vram_cap_bytes)}"


def device_words(main: Attempt | None) -> str:
    """What an attempt trained on, by name where it is a GPU, with its rung and cap; empty without an attempt."""
    if main is None:
        return ""
    setups = main.all(Setup)
    if not setups:
        return asked_device(main)
    # The CPU's model name is long and stands in the environment; a GPU's is what a reader of the row looks for.
    if setups[-1].device == "cpu":
        return f"cpu{_rung(main)}"
    card = f"{setups[-1].device} {setups[-1].device_name}".strip()
    return f"{card}{_rung(main)}{_capped(setups[-1].vram_cap_bytes)}"


def precision_words(main: Attempt | None) -> str:
    """Return the precision that an attempt computed in; empty where it never got so far."""
    last = _last(main, Setup)
    return last.precision if last else ""


def _rung(attempt: Attempt) -> str:
    """So that no result of a rung reads as one of the run as asked; all on the CPU is what the device says already."""
    return f" ({attempt.start.rung})" if attempt.start.rung not in ("", "cpu") else ""


def _capped(cap_bytes: int | None) -> str:
    """So that no result of a large card under --vram-cap reads as one of a small card."""
    return "" if cap_bytes is None else f" (capped at {cap_bytes / 2**30:.1f} GiB)"
