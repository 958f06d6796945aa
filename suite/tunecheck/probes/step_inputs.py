"""The batches of every step of any training, so that steps can be compared with each other."""

from __future__ import annotations

from collections.abc import Sequence

from tunecheck.core.evidence import StepInputs
from tunecheck.training.data import Batch
from tunecheck.training.events import Probe
from tunecheck.training.session import Session


class StepInputsProbe(Probe):
    """Notes digests; nothing needs to be declared for that."""

    emits = (StepInputs,)

    def step_begin(self, session: Session, step: int, window: Sequence[Batch]) -> None:
        """Keep the window, which a loop fills later."""
        self._window = window

    def backward_end(self, session: Session, step: int) -> None:
        """Record this window."""
        self.emit(StepInputs(step=step, digests=tuple(batch.digest for batch in self._window)))
