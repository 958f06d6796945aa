"""What each step calls in which order, seen in torch; cleared or changed gradients are read off a few small tensors."""

import math
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.optim.lr_scheduler import LRScheduler

from tunecheck.core.evidence import CallOrder
from tunecheck.probes.reference.witness import Witness
from tunecheck.training.events import Probe
from tunecheck.training.hooks import inner_optimizer, same_optimizer
from tunecheck.training.session import Session

STEPS = 10
"""Steps that are listened to, the first ones: an order is that of the code, which is the same in all of them."""
WITNESSES = 8
MOST_CALLS = 100_000
"""Calls of one step, beyond which listening ends."""
LEAST_TO_MEASURE = 1000
"""Limit over norm from which on clipping behind the optimizer's step is to measure the norm."""
REPEATABLE = frozenset({"schedule", "step", "idle step"})
"""Calls that are noted each; of others one in a row is enough."""


class CallOrderProbe(Probe[CallOrder]):
    """Notes calls as they happen, but for those of the probes' own."""

    def start(self, session: Session) -> None:
        # of several optimizers the one with most of what learns: the others' steps are not its own
        self._optimizer = inner_optimizer(getattr(session.optimizer, "optimizers", [session.optimizer])[0])
        self._witnesses = _few(self._optimizer)
        self._calls: list[str] = []
        self._clips: list[tuple[Any, float]] = []
        """Norm and limit of each clip of the step: the norm is read when the step is over."""
        self._schedule: int | None = None
        """Identity of the first one that is stepped."""
        self._step = 0
        self._in_optimizer = self._in_schedule = self._in_scaler = self._scaled = False
        self._inside: list[str] = []
        self._listening = True
        self._others = WeakKeyDictionary[Any, _Other]()
        hooks, model = self.hooks, session.model
        hooks.before(session.called, lambda *_: self._forward(model))
        hooks.optimizer_steps(self._on_step, self._on_stepped)
        hooks.backward(before=self._look, after=self._on_backward)
        hooks.function(torch.nn.utils, "clip_grad_norm_", before=self._look, after=self._on_clipped)
        hooks.function(torch.nn.utils, "clip_grad_value_", before=self._look, after=self._on_bounded)
        scaler = torch.amp.GradScaler
        hooks.function(scaler, "scale", before=self._on_scale)
        hooks.function(scaler, "unscale_", before=self._look, after=self._on_unscaled)
        hooks.function(scaler, "step", before=self._on_scaler, after=self._on_scaler_done)
        for kind in _with_a_step(LRScheduler):
            hooks.function(kind, "step", before=self._on_schedule)

    def step_begin(self, session: Session, step: int, window: object) -> None:
        """Record the step before, which lasts until this one begins."""
        if self._listening:
            self._look()
        self._record()
        self._step, self._away = step, 0.0
        for witness in self._witnesses:
            witness.begin()
        if step >= STEPS:
            self._leave()

    def backward_end(self, session: Session, step: int) -> None:
        """Look at the gradients before other probes put them aside for a moment."""
        if self._listening:
            self._look()

    def step_end(self, session: Session, step: int, applied: bool) -> None:
        """A loop's step ends inside of the optimizer's."""
        if self._in_optimizer:
            self._stepped()

    def end(self, session: Session) -> None:
        self._record()
        self._leave()

    def _record(self) -> None:
        if self._calls and self._listening:
            scales = [max_norm / norm for clipped, max_norm in self._clips if 0 < (norm := float(clipped)) < math.inf]
            scale = min(1.0, max(scales)) if scales else None
            self.emit(CallOrder(step=self._step, calls=tuple(self._calls), clip_scale=scale))
        self._calls, self._clips = [], []

    def _leave(self) -> None:
        self._listening = False
        self.hooks.remove()

    # Where calls are seen.

    def _note(self, call: str) -> None:
        if self._in_optimizer:
            self._inside.append(call)
        elif call in REPEATABLE or self._calls[-1:] != [call]:
            self._calls.append(call)
            if len(self._calls) > MOST_CALLS:
                self._leave()

    def _look(self, *_: Any, **__: Any) -> None:
        """Note what was done to the gradients since the last call."""
        for other in self._others.values():
            other.look()
        seen = {witness.look() for witness in self._witnesses} - {""}
        used = next((call for call in reversed(self._calls) if call in ("backward", "step", "idle step")), "")
        if "keep" in seen and (self._in_optimizer or used != "backward"):  # a first momentum is the gradient itself
            seen = seen - {"keep"} | {"clear"}
        if "clear" in seen and self._calls[-1:] == ["backward"] and any(w.moved() for w in self._witnesses):
            self._note("move")
            self._away = max(witness.away() for witness in self._witnesses)
        for call in sorted(seen):
            self._note(call)

    def _remember(self) -> None:
        for witness in self._witnesses:
            witness.remember()

    def _forward(self, model: Any) -> None:
        self._look()
        learns = "forward" if model.training else "forward in eval mode"
        self._note(learns if torch.is_grad_enabled() else "evaluate")

    def _on_backward(self, *_: Any, **__: Any) -> None:
        if any(witness.touched() for witness in self._witnesses):
            self._note("backward")
            for witness in self._witnesses:
                witness.remember_weights()
        self._remember()
        for other in self._others.values():
            other.differentiated()

    def _on_clipped(self, norm: Any, parameters: Any, max_norm: float, *_: Any, **__: Any) -> None:
        """Note it where it has a limit; out of place also only where it has an effect, since it measures the norm."""
        # of a DTensor's gradient no count tells that it was written to in place
        ours = any(witness.touched() or hasattr(witness.parameter, "to_local") for witness in self._witnesses)
        used = next((call for call in reversed(self._calls) if call in ("backward", "step")), "") == "step"
        if ours and math.isfinite(max_norm) and (not (used or self._scaled) or float(norm) > max_norm):
            self._note("clip")
            self._clips.append((norm, max_norm))
        elif ours and used and max_norm < LEAST_TO_MEASURE * float(norm):
            self._note("clip in vain")
        elif not ours and math.isfinite(max_norm) and not float(norm):
            self._note("clip nothing")
        self._remember()

    def _on_bounded(self, *_: Any, **__: Any) -> None:
        """Note where single values are bounded too late; in its place that is an edit."""
        last = next((call for call in reversed(self._calls) if call in ("backward", "step", "clear")), "")
        if last == "step" and any(witness.touched() for witness in self._witnesses):
            self._note("clip in vain")
            self._remember()

    def _on_scale(self, scaler: Any, *_: Any, **__: Any) -> None:
        if scaler.is_enabled():
            self._note("scale")
            self._scaled = True

    def _on_unscaled(self, _result: Any, scaler: Any, optimizer: Any) -> None:
        if scaler.is_enabled() and self._is_own(optimizer) and self._scaled:
            self._note("unscale")
            self._scaled = False
        self._remember()

    def _on_scaler(self, scaler: Any, optimizer: Any, *_: Any, **__: Any) -> None:
        """It unscales what nobody has, or has the optimizer do it, and steps unless a gradient is not finite."""
        self._in_scaler = scaler.is_enabled() and self._is_own(optimizer)
        if self._in_scaler:
            self._look()
            self._on_unscaled(None, scaler, optimizer)

    def _on_scaler_done(self, *_: Any, **__: Any) -> None:
        if self._in_scaler:
            self._note("skip")
        self._in_scaler = False
        self._remember()

    def _is_own(self, optimizer: Any) -> bool:
        return same_optimizer(optimizer, self._optimizer)

    def _stands_still(self, optimizer: Any) -> bool:
        """Return whether another optimizer of the same tensors has not stepped so far."""
        own = {id(p) for group in self._optimizer.param_groups for p in group["params"]}
        groups = getattr(optimizer, "param_groups", ())  # a schedule of the script's own may have no optimizer
        return optimizer not in self._others and any(id(p) in own for group in groups for p in group["params"])

    def _on_step(self, optimizer: Any, *_: Any) -> None:
        if self._is_own(optimizer):
            self._look()
            if self._away and max(witness.away() for witness in self._witnesses) > self._away / 2:
                self._note("unrestored move")
            state = getattr(getattr(sys.modules.get("accelerate.state"), "GradientState", None), "_shared_state", {})
            if not state.get("sync_gradients", True):  # accelerate says that the step's gradients are not complete yet
                self._note("accumulate")
            self._in_optimizer, self._inside = True, []
        else:
            if optimizer not in self._others:
                self._others[optimizer] = _Other(optimizer)
            self._others[optimizer].look()

    def _on_stepped(self, optimizer: Any, *_: Any) -> None:
        if not self._is_own(optimizer):
            other = self._others.get(optimizer)
            self._note(f"{'used ' if other and other.stepped() else ''}step of another optimizer")
        elif self._in_optimizer:
            self._stepped()

    def _stepped(self) -> None:
        self._in_optimizer = self._in_scaler = self._scaled = False
        # a closure's passes are before the step that they are made for, however many a line search makes
        if "backward" in self._inside:
            if "clear" in self._inside[: self._inside.index("backward")]:
                self._note("clear")
            self._note("backward")
        self._note("step" if any(witness.held for witness in self._witnesses) else "idle step")
        self._remember()

    def _on_schedule(self, schedule: Any, *given: Any, **named: Any) -> Callable[[Any], None] | None:
        """Note the outermost call for our optimizer; not the one that makes a schedule, nor one that names the step."""
        # where it is being made; one with warm restarts never counts its steps
        first = getattr(schedule, "_is_initial", getattr(schedule, "_step_count", 1) == 0)
        if self._in_schedule or first or given or named:
            return None
        if not self._is_own(optimizer := getattr(schedule, "optimizer", None)):
            if self._stands_still(optimizer):
                self._note("schedule of an optimizer that does not step")
            return None
        self._in_schedule = True
        self._look()
        self._schedule = self._schedule or id(schedule)
        # accelerate steps a schedule once for each process
        if self._schedule == id(schedule) and int(os.environ.get("WORLD_SIZE") or 1) == 1:
            self._note("schedule")
        return lambda _: setattr(self, "_in_schedule", False)


class _Other:
    """Another optimizer: whether its step uses gradients again, with those of a later backward pass on top."""

    def __init__(self, optimizer: Any) -> None:
        self._witnesses = _few(optimizer)
        self._used = self._piled = False

    def look(self) -> None:
        """See whether the gradients that its last step has used were cleared or replaced since."""
        if any({witness.look() for witness in self._witnesses}):
            self._used = self._piled = False

    def differentiated(self) -> None:
        """A backward pass is over, which may have added to them."""
        self._piled |= self._used and any(witness.touched() for witness in self._witnesses)
        for witness in self._witnesses:
            witness.remember()

    def stepped(self) -> bool:
        """Return whether it has stepped with gradients that the step before had used, and with others on top."""
        piled, self._piled = self._piled, False
        self._used = any(witness.held for witness in self._witnesses)
        return piled


def _few(optimizer: Any) -> list[Witness]:
    """Return some of the smaller tensors that the optimizer trains, from all over the model."""
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    small = sorted(range(len(trained)), key=lambda at: trained[at].numel())[: max(1, len(trained) // 2)]
    return [Witness(trained[at], optimizer) for at in sorted(small)[:: max(1, len(small) // WITNESSES)]]


def _with_a_step(kind: type[Any]) -> Iterator[type[Any]]:
    """Yield this class and what derives from it, where it has a method `step` of its own."""
    if "step" in vars(kind):
        yield kind
    for derived in kind.__subclasses__():
        yield from _with_a_step(derived)
