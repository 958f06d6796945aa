"""Sources of a run's weights and rows, and the device that it trained on, in words."""

from __future__ import annotations

from typing import TypeVar

from tunecheck.core.evidence import Dataset, Record, Setup, Weights
from tunecheck.core.trace import Attempt

R = TypeVar("R", bound=Record)


def weights_words(main: Attempt | None) -> str:
    """Return source, identifier@revision, the start of the digest, pretrained or random; empty without weights."""
    if (last := _last(main, Weights)) is None:
        return ""
    kind = "pretrained" if last.pretrained else "random"
    parts = (last.source, _pinned(last.identifier, last.revision), last.sha256[:12], kind)
    # Random weights name themselves twice: their source is "random" too.
    return " ".join(part for part in dict.fromkeys(parts) if part)


def data_words(main: Attempt | None) -> str:
    """Return source, identifier@revision, the start of the digest, numbers of rows; empty without rows."""
    if (last := _last(main, Dataset)) is None:
        return ""
    rows = f"{last.rows} + {last.heldout_rows} rows"
    return f"{last.source} {_pinned(last.identifier, last.revision)} {last.sha256[:12]} {rows}"


def data_instead_of(main: Attempt | None) -> str:
    """Return the hub's rows that were requested and its answer, where others were used; else empty."""
    last = _last(main, Dataset)
    return last.instead_of if last else ""


def repairs(main: Attempt | None) -> tuple[str, ...]:
    """Return when and why damaged weights or rows were replaced by fresh ones."""
    found = (_last(main, Weights), _last(main, Dataset))
    return tuple(repair for record in found if record for repair in record.repairs)


def _last(main: Attempt | None, kind: type[R]) -> R | None:
    found = main.all(kind) if main else []
    return found[-1] if found else None


def _pinned(identifier: str, revision: str) -> str:
    return f"{identifier}@{revision}" if revision else identifier


def attempt_device(attempt: Attempt) -> str:
    """Return the device that an attempt was given, with its fallback step and cap."""
    return f"{attempt.start.device}{_fallback_step(attempt)}{_capped(attempt.start.vram_cap_bytes)}"


def device_words(main: Attempt | None) -> str:
    """Return the device that an attempt used, a GPU by name, with fallback step and cap; empty without an attempt."""
    if main is None:
        return ""
    setups = main.all(Setup)
    if not setups:
        return attempt_device(main)
    # The CPU's model name is long and stands in the environment; a GPU's is what a reader of the row looks for.
    if setups[-1].device == "cpu":
        return f"cpu{_fallback_step(main)}"
    card = f"{setups[-1].device} {setups[-1].device_name}".strip()
    return f"{card}{_fallback_step(main)}{_capped(setups[-1].vram_cap_bytes)}"


def precision_words(main: Attempt | None) -> str:
    """Return the precision that an attempt computed in; empty where it never got so far."""
    last = _last(main, Setup)
    return last.precision if last else ""


def _fallback_step(attempt: Attempt) -> str:
    """Return the fallback step in brackets; empty for the run as configured, and for "cpu", which the device says."""
    step = attempt.start.fallback_step
    return f" ({step})" if step not in ("", "cpu") else ""


def _capped(cap_bytes: int | None) -> str:
    """Return the cap in brackets, so that no result of a large GPU under --vram-cap reads as that of a small one."""
    return "" if cap_bytes is None else f" (capped at {cap_bytes / 2**30:.1f} GiB)"
