"""A whole listener in one screen, to copy and change: a framework whose Engine trains by `fit`.

Its engine has a `model` and an `optimizer`. It calls `micro_batch(inputs)` for each forward pass and `update()` for
each step. Put your copy beside suite/tunecheck/listen/loop.py. Add to WRAPPED of suite/tunecheck/listen/imports.py what
wraps `Engine.fit` in this listener, as `_wrap_trainer` wraps `Trainer.train` (CONTRIBUTING.md).
"""

from __future__ import annotations

from tunecheck.core.premises import Premise
from tunecheck.listen.batches import batch_of, unknown_batch
from tunecheck.listen.declared import run_of_loop, session_of
from tunecheck.listen.listener import Listener
from tunecheck.listen.optimizers import highest_rate
from tunecheck.listen.trained_model import device_of, objective_of
from tunecheck.listen.user_code import of_caller
from tunecheck.training.hooks import Hooks


class EngineListener(Listener):
    """The moments of an engine: `begin` once, then three calls for each step. An error of ours never reaches it."""

    def __init__(self, engine, options):
        super().__init__(options)
        self.engine, self.run = engine, None
        self.hooks = Hooks(self.failed)

    def attach(self):
        """Wrap methods of this one engine, never of its class."""
        self.hooks.function(self.engine, "micro_batch", before=self.on_batch, after=self.on_loss)
        self.hooks.function(self.engine, "update", before=self.on_gradients, after=self.on_updated)

    def detach(self):
        """Leave the engine as it was."""
        self.hooks.remove()

    def on_batch(self, inputs):
        """A micro-batch is about to be trained on: the first one begins the training, the first of a window a step."""
        model, device = self.engine.model, device_of(self.engine.model)
        objective = objective_of(model, [inputs])  # why rows and loss are not those of a causal language model
        batch = (unknown_batch if objective else batch_of)(inputs, device)
        if self.run is None:
            self.run = run_of_loop(model, self.engine.optimizer, self, None, objective)
            session = session_of(self.run, model, [batch], optimizer=self.engine.optimizer)
            known = self.run.holds(Premise.UPDATE_RULE_KNOWN)
            self.begin(session, "AdamW" if known else "")
            self.emit(*of_caller())  # the line of the user's code that trains
        if self.listening and not self.window:
            self.step_begin()
        self.window.append(batch)

    def on_loss(self, loss, *_):
        """The micro-batch's share of the window's loss is computed."""
        self.losses.append(loss.detach())

    def on_gradients(self):
        """The window's gradients are complete, unscaled and not yet clipped."""
        if self.listening:
            self.rate = highest_rate(self.engine.optimizer)
            self.backward_end()

    def on_updated(self, *_):
        """The optimizer has stepped. After the last step that is listened to, nothing is hooked any more."""
        if not self.listening:
            return
        self.step_end(applied=True)
        self.step, self.window = self.step + 1, []
        if not self.listening:
            self.hooks.remove()
