"""A loop that is not ours and no Trainer's: plain PyTorch, accelerate, Lightning.

Nothing announces its moments, so they are read off what every loop calls: the model's forward, `Tensor.backward`,
`clip_grad_norm_`, the optimizer's step. A window is all micro-batches between two steps. What such a loop declares are
its model, its optimizer and what its model is called with. This is loaded as torch is imported, and imports nothing
that the program might not: what listens comes with the first forward pass that learns.
"""

from __future__ import annotations

import atexit
import functools
import math
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from suite.core.wrapping import told
from suite.watch.problems import say

if TYPE_CHECKING:
    from suite.training.data import Batch
    from suite.watch.declared import WatchedRun
    from suite.watch.listener import Listener
    from suite.watch.loop_loss import Pass
    from suite.watch.options import Options


class LoopHooks:
    """What is wrapped for as long as a loop is listened to, and the moments that follow from it."""

    def __init__(self, options: Options, model: Any = None, optimizer: Any = None, tokenizer: Any = None) -> None:
        self.options, self.model, self.tokenizer = options, model, tokenizer
        self.optimizers: list[Any] = [] if optimizer is None else [getattr(optimizer, "optimizer", optimizer)]
        self.stepped: list[Any] = []
        """Of the optimizers, those that have stepped in the present step."""
        self.listener: Listener | None = None
        self.window: list[Batch] = []
        self.passes: list[Pass] = []
        """Forward passes that nothing was differentiated of so far."""
        self.unjudged: dict[str, str] = {}
        self.losses: list[torch.Tensor] = []
        self.step, self.begun, self.inside = 0, False, False
        self.norm: Any = None
        self.rate = self.own_norm = math.nan
        self.run: WatchedRun | None = None
        self.autocast: torch.dtype | None = None
        self.done_backward = False
        self.seconds = self.since = 0.0
        self.unheard = ""
        """Class of the last optimizer that stepped."""
        self.put_back: list[Callable[[], None]] = []

    def attach(self) -> None:
        """Begin to listen: to the model, where it is known, else to the first one that learns."""
        if self.model is not None:
            self._listen_to_model()
        else:
            self._finder = torch.nn.modules.module.register_module_forward_pre_hook(self._find)
            self.put_back.append(self._finder.remove)
        self._wrap(torch.Tensor, "backward", self.on_backward)
        self._wrap(torch.nn.utils, "clip_grad_norm_", self.on_clip, after=self.on_clipped)
        self.put_back += [
            register_optimizer_step_pre_hook(self.on_step).remove,
            register_optimizer_step_post_hook(self.on_stepped).remove,
        ]

    def detach(self, error: BaseException | None = None) -> None:
        """Put everything back, and end the trace."""
        if self.listener is not None:  # first: its probes have wrapped what is wrapped here, and put it back
            self.listener.close(error)
        for undo in reversed(self.put_back):
            undo()
        self.put_back = []

    def _listen_to_model(self) -> None:
        """Listen to the calls of the model, this one included."""
        before = self.model.register_forward_pre_hook(self.on_forward, with_kwargs=True)
        after = self.model.register_forward_hook(self.on_returned)
        self.put_back += [before.remove, after.remove]

    def _wrap(
        self, owner: Any, name: str, call: Callable[..., None], after: Callable[[Any], None] | None = None
    ) -> None:
        """Have a function tell its arguments before it begins, and its result; modules that hold it by name, too."""

        def before(*args: Any, **kwargs: Any) -> None:
            self._safely(lambda: call(*args, **kwargs))

        def returned(value: Any, *_: Any, **__: Any) -> None:
            if after is not None:
                self._safely(lambda: after(value))

        self.put_back.append(told(owner, name, before=before, after=returned))

    def _safely(self, call: Callable[[], Any]) -> None:
        """Call this, unless it is our own doing that brought us here."""
        if self.inside:
            return
        self.inside = True
        kind = self.model.device.type if self.model is not None else "cpu"
        self.autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        try:
            # the loop's own autocast, with the casts that it keeps, is not the probes'
            with torch.autocast(kind, enabled=False):
                self._told(call)
        except Exception as error:
            say(f"cannot listen to this loop ({type(error).__name__}: {error})")
            self.detach()
        finally:
            self.inside = False

    def _told(self, call: Callable[[], Any]) -> None:
        """Call this; once there is a listener, it sees to errors."""
        if self.listener is not None:
            self.listener.safely(call, "a loop")
        else:
            call()

    # The model.

    def _find(self, module: Any, args: Any) -> None:
        """The first call of a causal model that learns, with gradients, finds the model."""
        if self.inside or not torch.is_grad_enabled() or self.model is not None:
            return
        if not hasattr(module, "config") or getattr(module, "get_output_embeddings", lambda: None)() is None:
            return
        if not any(p.requires_grad for p in module.parameters()):
            return
        self.model = module
        self._finder.remove()  # a hook of all modules slows every call
        self._listen_to_model()
        # this very call goes on without the new hook; what it was given by keyword is one frame up
        self.on_forward(module, args, sys._getframe(1).f_locals.get("kwargs") or {})

    def on_forward(self, module: Any, args: Any, given: dict[str, Any]) -> None:
        """A micro-batch is about to be trained on."""
        if torch.is_grad_enabled():
            self._safely(lambda: self._forward({**({"input_ids": args[0]} if args else {}), **given}))

    def _forward(self, given: dict[str, Any]) -> None:
        if self.listener is not None and not self.listener.listening:
            return
        from suite.watch.loop_loss import Pass, provisional

        if self.listener is None and not self._begin(provisional(given, self.model.device)):
            return
        assert self.listener is not None
        if self.stepped:  # not every optimizer steps each time
            self._stepped()
        if not self.listener.listening:
            return
        if not self.begun:
            self.begun, self.window, self.losses, self.norm, self.passes = True, [], [], None, []
            self.done_backward = False
            self.listener.step_begin(self.step, self.window)
            self.seconds, self.since = 0.0, time.perf_counter()
        self.passes.append(Pass(given))

    def on_returned(self, module: Any, args: Any, out: Any) -> None:
        """A micro-batch's forward pass is done."""
        if self.passes and torch.is_grad_enabled():
            self._safely(lambda: self.passes[-1].returned(out))

    def _begin(self, batch: Batch) -> bool:
        """Begin to listen, if there is an optimizer already; one made after the first forward waits for the second."""
        from suite.watch.listener import Listener
        from suite.watch.loop_run import optimizers_of, run_of, together
        from suite.watch.session import session_of
        from suite.watch.user_code import of_caller

        if self.options.purpose != "train":
            os._exit(0)  # a run of --twice, which a loop cannot be kept out of its folders in
        self.optimizers = self.optimizers or optimizers_of(self.model)
        if not self.optimizers:
            return False
        optimizer = together(self.optimizers)
        self.listener = Listener(self.options)
        self.run = run = run_of(self.model, optimizer, self.listener, self.autocast or self.model.dtype)
        session = session_of(run, self.model, [batch], optimizer=optimizer, tokenizer=self.tokenizer)
        self.listener.begin(session, "AdamW" if "updates_match_adamw" not in run.unjudged else "")
        self.listener.emit(*of_caller())
        return True

    # A step.

    def on_backward(self, tensor: torch.Tensor, *_: Any, **__: Any) -> None:
        """A loss is about to be differentiated: what it is made of is the window's."""
        if not self.begun or self.done_backward or tensor.numel() != 1:
            return
        from suite.watch.loop_loss import loss_of

        self.losses.append(tensor.detach())
        loss = loss_of(tensor, self.passes)
        for each in loss.passes:
            batch, unjudged = loss.batch(each, self.model.device)
            self.window.append(batch)
            self.unjudged |= unjudged
        self.passes = [each for each in self.passes if each not in loss.passes]

    def on_clip(self, parameters: Any, max_norm: float, *_: Any, **__: Any) -> None:
        """Gradients are about to be clipped: they are complete."""
        if self.begun and self.run is not None:
            vars(self.run.training)["max_grad_norm"] = float(max_norm)  # frozen, and known only now
            self._backward_end()

    def on_clipped(self, norm: Any) -> None:
        """Gradients were clipped: those of the whole model, by the norm that we know, or others."""
        self.norm = norm
        if self.begun and self.listener is not None and abs(float(norm) - self.own_norm) > 1e-3 * self.own_norm:
            why = "gradients are clipped in parts, or by another norm"
            self.listener.not_judged(dict.fromkeys(("updates_match_adamw", "gradient_norm_reported"), why))

    def on_step(self, optimizer: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        """An optimizer is about to step: with a closure the passes are yet to come, as in Lightning."""
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if self.inside or not callable(closure):
            self._complete(optimizer)
            return None

        @functools.wraps(closure)
        def watched() -> Any:
            value = closure()
            self._complete(optimizer)
            return value

        return ((args[0], watched, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": watched})

    def _complete(self, optimizer: Any) -> None:
        """This optimizer's gradients are complete."""
        if self.begun and not self.inside and any(optimizer is own for own in self.optimizers):
            self._safely(self._backward_end)

    def _backward_end(self) -> None:
        from suite.watch.session import norm_of_gradients

        assert self.listener is not None
        if self.done_backward:
            return
        self.done_backward = True
        if self.unjudged:
            self.listener.not_judged(self.unjudged)
        self.seconds += time.perf_counter() - self.since
        self.own_norm = norm_of_gradients(self.model)
        self.rate = float(self.optimizers[0].param_groups[0]["lr"])
        self.listener.tell_rate(self.rate)
        self.listener.backward_end(self.step)
        self.since = time.perf_counter()

    def on_stepped(self, optimizer: Any, *_: Any) -> None:
        """An optimizer has stepped."""
        self.unheard = type(optimizer).__name__
        if self.begun and not self.inside and any(optimizer is own for own in self.optimizers):
            self.stepped.append(optimizer)
            if len(self.stepped) == len(self.optimizers):
                self._safely(self._stepped)

    def _stepped(self) -> None:
        from suite.core.evidence import Step

        assert self.listener is not None
        self.seconds += time.perf_counter() - self.since
        own = sum(batch.supervised_tokens for batch in self.window)
        self.begun, self.stepped, self.passes = False, [], []
        self.listener.step_end(
            Step(
                step=self.step,
                loss=float(sum(self.losses)),
                learning_rate=self.rate,
                gradient_norm=self.own_norm if self.norm is None else float(self.norm),
                supervised_tokens=own,
                tokens=sum(batch.tokens for batch in self.window),
                applied=True,
                seconds=self.seconds,
            )
        )
        self.step += 1

    def why_not(self) -> str:
        """Return why a loop of this process was not listened to; "" where there was none, or it was."""
        if self.listener is not None or not self.unheard:
            return ""
        if self.model is None:
            return f"{self.unheard} stepped, but no causal language model of transformers was called with gradients"
        return f"{self.unheard} stepped, but no optimizer holds what the {type(self.model).__name__} learns"


_waiting: list[LoopHooks] = []


def stand_aside() -> None:
    """Leave the training to whoever announces it."""
    while _waiting:
        _waiting.pop().detach()


def listen(options: Options) -> None:
    """Listen to whatever loop this process will run, until it ends."""
    hooks = LoopHooks(options)
    hooks.attach()
    _waiting.append(hooks)
    error: list[BaseException] = []
    previous = sys.excepthook

    def ended(kind: Any, value: Any, trace: Any) -> None:
        error.append(value)
        previous(kind, value, trace)

    def end() -> None:
        hooks.detach(error[0] if error else None)
        if why := hooks.why_not():
            say(why)

    sys.excepthook = ended
    atexit.register(end)
