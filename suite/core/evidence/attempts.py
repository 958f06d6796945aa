"""The run and its attempts: written by the runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from suite.core.evidence.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeader(Record):
    """The first line of a trace: what was asked for, and where."""

    schema: int
    tunecheck_version: str
    started_at: str
    """UTC, ISO 8601."""
    run: dict[str, Any]
    """The resolved configuration, checks and limits included."""
    fingerprint: str
    """Digest of the configuration less its checks and deadline: equal fingerprints train the same thing."""
    environment: dict[str, Any]
    """Hardware, versions and the project's git commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStart(Record):
    """A child process begins."""

    purpose: str
    """train, repeat (same again in a fresh process), resume (from the checkpoint of the middle), compare (a variant
    for a few steps), rung (the same for a rung of the ladder), reference (a run that begins on the CPU, after a
    fallback to it), read back (what was saved, without the trainer) or merge (what was saved, into the base)."""
    device: str
    reason: str
    """Why this attempt was made: "asked for", or what made the one before it fail."""
    changes: dict[str, Any]
    """Settings in which this attempt differs from the run as configured; empty for the first one."""
    card: str | None = None
    """UUID of the GPU or MIG instance that it has to itself; None on the CPU."""
    vram_cap_bytes: int | None = None
    """--vram-cap: how much of the card gate and allocator were allowed; None for all of it, and on the CPU."""
    rung: str = ""
    """Of the run's ladder, see suite.runner.fallback_chain; empty for the run as it was asked for."""
    arithmetic: tuple[str, ...] = ()
    """What the rung computes otherwise than the run asked; empty when only the order of sums may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd(Record):
    """A child process is gone."""

    outcome: str
    """finished, out_of_memory, failed, crashed, hung, interrupted, unavailable (weights or data) or misconfigured."""
    detail: str
    """The error in a sentence, with the signal's name after a crash."""
    seconds: float
    log_tail: str = ""
    """The last lines of the child's output when it did not finish."""
