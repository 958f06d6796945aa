"""Whether a resumed training has its optimizer's state back."""

from __future__ import annotations

from suite.core.evidence import Resumed
from suite.training.events import Probe
from suite.training.session import Session


class ResumedProbe(Probe):
    """Looks at the optimizer once, before the first step, where that is not the run's first."""

    emits = (Resumed,)
    _seen = False

    def step_begin(self, session: Session, step: int, window: object) -> None:
        """Note how many steps the optimizer has behind it; a training from the start leaves no record."""
        if step and not self._seen:
            steps = [int(state["step"]) for state in session.optimizer.state.values()]
            self.emit(Resumed(step=step, optimizer_steps=max(steps, default=0)))
        self._seen = True
