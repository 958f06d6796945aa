"""What a run needs of a card's memory, before it begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from suite.config.schema import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Free memory that a run takes on a card."""

    bytes: int
    source: Literal["measured", "predicted", "stated"]
    when: str
    """Date of the measurement or prediction (ISO 8601); empty for what the run's own YAML states."""


def need_of(run: Run, *, gpu_name: str | None) -> Need | None:
    """What the run needs on a card of this name (None: any card); None when nobody knows."""
    return None if run.vram is None else Need(bytes=run.vram, source="stated", when="")
