"""A whole listener in one screen, to copy and change: a framework whose Engine trains by `fit`.

Its engine has a `model` and an `optimizer`. It calls `micro_batch(inputs)` for each forward pass and `update()` for
each step. Put your copy beside suite/tunecheck/listen/loop.py. Add to WRAPPED of suite/tunecheck/listen/imports.py what
wraps `Engine.fit` in `listening`, as `_wrap_trainer` wraps `Trainer.train` (CONTRIBUTING.md).
"""

from __future__ import annotations

from contextlib import contextmanager

from tunecheck.core.premises import Premise
from tunecheck.listen.batches import batch_of, unknown_batch
from tunecheck.listen.declared import run_of_loop, session_of
from tunecheck.listen.listener import Listener, StepMoments
from tunecheck.listen.optimizers import highest_rate
from tunecheck.listen.trained_model import device_of, objective_of
from tunecheck.listen.user_code import of_caller
from tunecheck.training.hooks import Hooks


@contextmanager
def listening(engine, options):
    """Listen to this engine for as long as the block lasts. An error of ours never reaches the training."""
    listener = Listener(options)
    heard = EngineHooks(engine, listener)
    listener.tried(heard.attach)
    try:
        yield listener
    except BaseException as error:
        listener.close(error)
        raise
    finally:
        heard.hooks.remove()
        listener.close()


class EngineHooks(StepMoments):
    """The moments of an engine, handed to the listener: `begin` once, then three calls for each step."""

    def __init__(self, engine, listener):
        super().__init__()
        self.engine, self.listener = engine, listener
        self.hooks = Hooks(listener.failed)
        self.run = None

    def attach(self):
        """Wrap methods of this one engine, never of its class."""
        self.hooks.function(self.engine, "micro_batch", before=self.on_batch, after=self.on_loss)
        self.hooks.function(self.engine, "update", before=self.on_gradients, after=self.on_updated)

    def on_batch(self, inputs):
        """A micro-batch is about to be trained on: the first one begins the training, the first of a window a step."""
        model, device = self.engine.model, device_of(self.engine.model)
        objective = objective_of(model, [inputs])  # why rows and loss are not those of a causal language model
        batch = (unknown_batch if objective else batch_of)(inputs, device)
        if self.run is None:
            self.run = run_of_loop(model, self.engine.optimizer, self.listener, None, objective)
            session = session_of(self.run, model, [batch], optimizer=self.engine.optimizer)
            known = self.run.holds(Premise.UPDATE_RULE_KNOWN)
            self.listener.begin(session, "AdamW" if known else "")
            self.listener.emit(*of_caller())  # the line of the user's code that trains
        if self.listener.listening and not self.window:
            self.step_begins(self.listener)
        self.window.append(batch)

    def on_loss(self, loss, *_):
        """The micro-batch's share of the window's loss is computed."""
        self.losses.append(loss.detach())

    def on_gradients(self):
        """The window's gradients are complete, unscaled and not yet clipped."""
        if self.listener.listening:
            self.rate = highest_rate(self.engine.optimizer)
            self.gradients_complete(self.listener, self.engine.model)

    def on_updated(self, *_):
        """The optimizer has stepped. After the last step that is listened to, nothing is hooked any more."""
        if not self.listener.listening:
            return
        self.stop_clock()
        self.step_ends(self.listener, applied=True)
        self.step, self.window = self.step + 1, []
        if not self.listener.listening:
            self.hooks.remove()
