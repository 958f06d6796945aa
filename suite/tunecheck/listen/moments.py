"""The moments of an optimizer step that a Trainer and a loop share. Imports nothing that the program might not."""

import math
import time
from typing import TYPE_CHECKING, Any

from tunecheck.core.evidence import Step

if TYPE_CHECKING:
    from tunecheck.listen.listener import Listener
    from tunecheck.training.data import Batch


SIGNS = {"cosine_embedding_loss": 2, "margin_ranking_loss": 2, "hinge_embedding_loss": 1, "soft_margin_loss": 1}
"""Loss of torch.nn.functional whose targets are -1 or 1 to the place of these among its arguments."""
LOSSES = ("kl_div", *SIGNS)
"""Losses that leave nothing of their own in the graph, and are heard as they are called."""


class StepMoments:
    """The step that is being trained: its window, losses, gradient norm, rate and clock."""

    def __init__(self) -> None:
        self.step = 0
        self.window: list[Batch] = []
        self.losses: list[Any] = []
        self.norm: Any = None
        """Norm that the training itself computed to clip; None without."""
        self.rate = self.own_norm = math.nan
        self.begun = self.done_backward = self.without_rate = False
        self.seconds = self.since = 0.0

    def step_begins(self, listener: "Listener") -> None:
        """Tell the listener that the window is about to be trained on, and start the clock."""
        self.losses, self.norm, self.done_backward, self.begun = [], None, False, True
        listener.step_begin(self.step, self.window)
        self.seconds, self.since = 0.0, time.perf_counter()

    def stop_clock(self) -> None:
        """Count what has passed as the training's own."""
        self.seconds += time.perf_counter() - self.since

    def gradients_complete(self, listener: "Listener", model: Any) -> None:
        """Tell the listener that the window's gradients are complete, and the step's rate; it is not timed."""
        from tunecheck.probes.reference.measures import norm

        self.stop_clock()
        norms = [norm(p.grad) for p in model.parameters() if p.grad is not None]
        self.own_norm = math.hypot(*norms) if norms else 0.0
        listener.backward_end(self.step, self.rate)
        self.since = time.perf_counter()

    def step_ends(self, listener: "Listener", *, applied: bool, supervised_tokens: int | None = None) -> None:
        """Tell the listener what the step came to, with the number of tokens that the training counts itself."""
        own = sum(batch.supervised_tokens for batch in self.window)
        step = Step(
            step=self.step,
            loss=float(sum(self.losses)),
            learning_rate=self.rate,
            gradient_norm=self.own_norm if self.norm is None else float(self.norm),
            supervised_tokens=own if supervised_tokens is None else supervised_tokens,
            tokens=sum(batch.tokens for batch in self.window),
            applied=applied,
            seconds=self.seconds,
            without_rate=self.without_rate,
        )
        listener.step_end(step)
