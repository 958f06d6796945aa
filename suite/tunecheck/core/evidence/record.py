"""What every record of a trace is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Base of everything that a trace may hold."""
