"""What the parent asks of a training process, and the cards that this one sees."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tunecheck.config.schema import Run
from tunecheck.core.evidence import Dataset, Step, Weights
from tunecheck.core.frozen import Frozen

VISIBLE = "CUDA_VISIBLE_DEVICES"
Progress = Callable[[Step], None]
Started = Callable[[int], None]
"""What a training tells: each step as it ends, and the id of the process that it has begun in."""


class Request(Frozen):
    """What the parent asks of a child; everything in it can be pickled."""

    run: Run
    purpose: str
    """An AttemptPurpose."""
    device: str
    weights: Weights
    folder: Path
    dataset: Dataset
    trace: Path
    checkpoint: Path
    """Where a checkpoint is written (train) or read (resume)."""
    saved: Path
    """Where what was trained is saved (train), read back or merged."""
    faults: tuple[Callable[[Any], None], ...] = ()
    """Functions that break a healthy session from outside, called when it is built: to see what the suite catches."""
    cards: tuple[str, ...] | None = None
    """UUIDs of this attempt's GPUs or MIG instances, one a process; None where the parent knows of no card."""
    vram_cap_bytes: int | None = None
    """What torch's allocator may use of the card; None for all of it, and without meaning on the CPU."""

    @property
    def written(self) -> tuple[Path, ...]:
        return (self.checkpoint.parent, self.trace.parent)


def show_only(cards: Sequence[str] | None) -> None:
    """CUDA shows this process the GPUs or MIG instances of these UUIDs alone, before it is initialised; None: all."""
    if cards is not None:  # an index may mean another card to CUDA than to NVML
        os.environ[VISIBLE] = ",".join(cards)


def card_of_rank(cards: Sequence[str] | None, rank: int) -> tuple[str, ...]:
    """Return what this rank alone is to see: its own of the run's cards; of unknown ones the one in its place."""
    if cards is None:
        visible = os.environ.get(VISIBLE)
        cards = visible.split(",") if visible is not None else [str(number) for number in range(rank + 1)]
    return tuple(cards[rank : rank + 1])
