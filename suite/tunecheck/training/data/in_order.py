"""The rows of a whole run as one data set, for trainers that read one instead of asking for windows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tunecheck.training.data import Batches, Tokens

if TYPE_CHECKING:
    from tunecheck.config.schema import Run


class RowsInOrder:
    """Every row of the run, one after the other, as seed and step prescribe: read in sequence it is one epoch."""

    def __init__(self, run: Run, batches: Batches) -> None:
        self._batches, self._steps = batches, run.training.max_steps
        self._rows_per_step = run.training.micro_batch_size * run.micro_batches_per_step

    def __len__(self) -> int:
        return self._steps * self._rows_per_step

    def __iter__(self) -> Iterator[Tokens]:
        return (self[place] for place in range(len(self)))

    def __getitem__(self, place: int) -> Tokens:
        if not 0 <= place < len(self):
            raise IndexError(place)
        step, within = divmod(place, self._rows_per_step)
        return [row for rows in self._batches.rows(step) for row in rows][within]
