"""What every step of any training is given: its batches, its random numbers, its dropout."""

from __future__ import annotations

from collections.abc import Sequence

from torch.nn.modules.dropout import _DropoutNd

from tunecheck.core.evidence import StepInputs
from tunecheck.probes.reference.measures import random_digest
from tunecheck.training.data import Batch
from tunecheck.training.events import Probe
from tunecheck.training.session import Session


class StepInputsProbe(Probe):
    """Notes digests, so that steps can be compared with each other without any declaration."""

    emits = (StepInputs,)

    def step_begin(self, session: Session, step: int, window: Sequence[Batch]) -> None:
        """Keep the window, which a loop fills later, and the random state that the step begins with."""
        self._window, self._state = window, random_digest(session.device)

    def backward_end(self, session: Session, step: int) -> None:
        """Record this window, and which modules dropped something in it."""
        drops = [module.training for module in session.model.modules() if isinstance(module, _DropoutNd) and module.p]
        self.emit(
            StepInputs(
                step=step,
                digests=tuple(batch.digest for batch in self._window),
                random_state=self._state,
                training=session.model.training,
                dropouts_on=sum(drops),
                dropouts_off=len(drops) - sum(drops),
            )
        )
