"""The loss of early steps, and its gradient, at the logits that the trainer itself computed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from tunecheck.checks.utilization import PROBED_STEPS
from tunecheck.core.evidence import OwnLoss
from tunecheck.probes.reference.measures import random_digest
from tunecheck.probes.reference.own_logits import OwnLogits, unpadded
from tunecheck.probes.reference.replay import first_call
from tunecheck.training.data import Batch
from tunecheck.training.events import Probe, probing
from tunecheck.training.session import Session

REPEATED = 2
"""The step whose first forward is carried out once more: the first in which adapters do something. What was random at
the start of the run, or was exchanged, is told by other probes; this costs one micro-batch's forward."""


class OwnLossProbe(Probe):
    """Watches the forwards of the first steps and of the oracle's."""

    emits = (OwnLoss,)

    def start(self, session: Session) -> None:
        """Note the steps."""
        last = session.run.training.max_steps
        self._steps = {*range(PROBED_STEPS), *(step % last for step in session.run.probes.oracle_steps)}
        self._logits: OwnLogits | None = None
        self._repeated = -1 if session.run.uses_dropout or session.run.training.offload == "parameters" else REPEATED

    def step_begin(self, session: Session, step: int, window: Sequence[Batch]) -> None:
        """Watch the forwards over this window's rows."""
        if step in self._steps and window:  # of a loop that is not ours the rows are not known yet
            self._logits = OwnLogits(session.model, unpadded(window), self.hooks, gradients=True)
            self._call = first_call(session.model, self.hooks)
            self._states: list[str] = []
            if session.run.uses_dropout:
                self.hooks.before(session.model.get_decoder(), partial(self._drawing, session))

    def _drawing(self, session: Session, *_: object) -> None:
        """Note the random state before a forward pass of the training's own."""
        if torch.is_grad_enabled() and not probing():
            self._states.append(random_digest(session.device))

    def backward_end(self, session: Session, step: int) -> None:
        """Record what was seen."""
        if self._logits is None:
            return
        logits, self._logits = self._logits, None
        logits.close()
        scale = session.scaler.get_scale() if session.scaler else 1.0
        scale *= session.exchange.count  # the mean over ranks divides by it
        self.emit(
            OwnLoss(
                step=step,
                loss=logits.loss_of(session.exchange),
                gradient_error=logits.gradient_error(scale),
                gradient_noise=logits.gradient_noise,
                foreign_rows=logits.foreign_rows,
                random_states=tuple(self._states),
                model_repeats=self._call.repeats(session.model) if step == self._repeated else None,
            )
        )
