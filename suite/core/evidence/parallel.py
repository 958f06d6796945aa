"""The processes of a training in several: their replicas, and what each wrote."""

from __future__ import annotations

from dataclasses import dataclass, field

from suite.core.evidence.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica(Record):
    """One rank's model after so many steps."""

    steps: int
    """Steps that were done; 0 before the first one, when frozen weights are in the digest too."""
    digest: str
    """Of all trained tensors and buffers, 16 hex digits."""
    tensors: dict[str, str] = field(default_factory=dict)
    """Digest by name, at the start, after the first steps and after the last one; empty after the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved(Record):
    """What one rank found when saving returned; every rank had given the trainer a folder of its own."""

    writers: tuple[int, ...]
    """Ranks whose folders held files."""
