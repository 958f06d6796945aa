"""A loop that is not ours and no Trainer's: plain PyTorch, accelerate, Lightning.

This is loaded as torch is imported. What hears the steps, and its imports, comes with the first pass that learns.
"""

import os
import sys
import weakref
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch.nn.parameter import is_lazy

from tunecheck.listen.problems import say
from tunecheck.listen.unheard import told
from tunecheck.models.layer_names import as_written, is_compiled
from tunecheck.training.events import probing
from tunecheck.training.hooks import Hooks, inner_optimizer, nothing, tensors_of

if TYPE_CHECKING:
    from tunecheck.listen.loop_steps import LoopSteps
    from tunecheck.listen.options import Options


class LoopHooks:
    """What is hooked until the model and the optimizers of a loop are found, and of optimizers also afterwards."""

    def __init__(
        self, options: "Options", model: Any = None, optimizer: Any = None, tokenizer: Any = None, follows: bool = False
    ) -> None:
        self.follows = follows
        """Whether another training of this process was listened to before, whose model may still be called."""
        self.options, self.model, self.tokenizer = options, as_written(model), tokenizer
        given = optimizer if isinstance(optimizer, list | tuple) else [optimizer]
        self.optimizers: list[Any] = [inner_optimizer(one) for one in given if one is not None]
        self.steps: LoopSteps | None = None
        """What hears the steps of the model, once it is found: the model is no longer held here."""
        self.differentiated = ""
        """How gradients were taken, where they were."""
        self.entry: Any = None
        """What each pass calls: the model, or a part of one that is never called itself."""
        self.parts: WeakSet[Any] = WeakSet()
        """Parts of modules that are not what is trained."""
        self.looks = 20
        """Modules whose optimizer is still to be looked up before an optimizer steps: a look walks all objects."""
        self.candidate: Callable[[], Any] = nothing
        """The last module that was called with gradients and that no optimizer held."""
        self.unheard = self.why = self.kind = ""
        """Class of the last optimizer that stepped, why no module that was called is what it trains, and its class."""
        self.hooks = Hooks(self._failed, unless=probing)

    def attach(self) -> None:
        """Begin to listen: to the model, where it is known, else to the first one that learns."""
        self._is_entry = self._is_found if self.model is None else self._is_of_given
        self._found = self.hooks.before(None, self._on_call, with_kwargs=True)
        self.hooks.function(torch.Tensor, "backward", before=self._on_backward)
        self.hooks.optimizer_steps(self._on_step, self._on_stepped)

    def detach(self, error: BaseException | None = None) -> None:
        """Put everything back, and end the trace."""
        if self.steps is not None:  # first: its probes have wrapped what is wrapped here, and put it back
            self.steps.close(error)
        self.hooks.remove()

    def _failed(self, reason: str) -> None:
        if self.steps is not None:
            self.steps.failed(reason)
        else:
            say(f"cannot watch this loop: {reason}")
            self.hooks.remove()

    # The model.

    def _on_call(self, module: Any, args: Any, given: dict[str, Any]) -> None:
        """Listen to what each pass calls once it is called, this call included, which goes on without a new hook."""
        if torch.is_grad_enabled() and self.entry is None and self._is_entry(module, args, given):
            self._hook(module)
            self._on_forward(module, args, given)

    def _is_found(self, module: Any, args: Any, given: dict[str, Any]) -> bool:
        """Return whether this is what an optimizer trains: the model is found then."""
        if not self.looks or module in self.parts or not any(p.requires_grad for p in module.parameters()):
            return False
        from tunecheck.listen.optimizers import optimizers_of
        from tunecheck.listen.trained_model import called_by_name, is_causal, trained_whole

        hidden, module = is_compiled(module), as_written(module)
        if is_causal(module) and not args and given.get("input_ids") is None:
            return False  # its rows begin outside of it, as those of a captioner do: what calls it is the model
        if self.follows and not optimizers_of(module):
            return False
        self.looks -= not is_causal(module)
        by_name = called_by_name(module) if args or given.get("input_ids") is not None else None
        self.model, self.why = trained_whole(by_name or module, again=hidden or module is self.candidate())
        self.kind = type(module).__name__
        if self.model is not None and is_causal(self.model) and module is self.model.get_input_embeddings():
            self.model = None  # what the script makes of its outputs is what the model gets
        elif self.model is None:
            if torch._C._functorch.peek_interpreter_stack() is not None:
                self.why = f"a transform of torch.func calls the {self.kind}"
            self.candidate = weakref.ref(module)
            self.parts.update(part for part in module.modules() if part is not module and not is_causal(part))
        return self.model is not None

    def _is_of_given(self, module: Any, args: Any, given: dict[str, Any]) -> bool:
        """Return whether this is what a pass of the model that was given calls: itself, or a part of it."""
        from tunecheck.listen.trained_model import called_by_name, is_transformers

        own = not is_transformers(self.model) and any(module is part for part in self.model.modules())
        return as_written(module) is self.model or own or called_by_name(module) is self.model

    def _hook(self, module: Any) -> None:
        self._found()
        self.entry = module
        self.hooks.before(module, self._on_forward, with_kwargs=True)

    def _on_forward(self, module: Any, args: Any, given: dict[str, Any]) -> None:
        if not torch.is_grad_enabled():
            if self.steps is not None:
                self.steps.evaluates()
        elif torch._C._functorch.peek_interpreter_stack() is not None:  # its tensors stand for others, without numbers
            self.differentiated = "by a transform of torch.func"
        elif self.steps is not None:
            self.steps.forward(args, given)
        else:
            self._begin(args, given)

    def _begin(self, args: Any, given: dict[str, Any]) -> None:
        """Begin to listen at the first forward that finds an optimizer and no lazy parameters, which are made in it."""
        from tunecheck.listen.loop_steps import LoopSteps
        from tunecheck.listen.optimizers import optimizers_of
        from tunecheck.probes.reference.measures import looked_once

        if self.options.purpose != "train":
            os._exit(0)  # a run of --twice, which a loop cannot be kept out of its folders in
        with looked_once():
            self.optimizers = self.optimizers or optimizers_of(self.model)
            if self.optimizers and not any(map(is_lazy, self.model.parameters())):
                self.steps = LoopSteps(self, args, given)
                self.hooks.within = self.steps.ours
                entry, self.model, self.entry, self.optimizers, self.parts = self.entry, None, None, [], WeakSet()
                with self.steps.ours():
                    self.steps.listen(entry, self.tokenizer)
        if self.steps is not None:
            with self.steps.ours():
                self.steps.forward(args, given)

    # A step.

    def _on_backward(self, *_: Any, **__: Any) -> None:
        self.differentiated = "by backward"

    def _on_step(self, optimizer: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        """An optimizer is about to step: with a closure the passes are yet to come, as in Lightning."""
        if self.steps is not None:
            self.steps.before_step(optimizer)
        if not callable(closure := args[1] if len(args) > 1 else kwargs.get("closure")):
            self._complete(optimizer)
            return None
        complete = self.hooks.guarded(self._complete)

        @wraps(closure)
        def watched() -> Any:
            value = closure()
            complete(optimizer)
            return value

        return ((args[0], watched, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": watched})

    def _complete(self, optimizer: Any) -> None:
        if self.steps is not None:
            self.steps.complete(optimizer)

    def _on_stepped(self, optimizer: Any, *_: Any) -> None:
        self.unheard, self.looks = type(optimizer).__name__, max(1, self.looks)
        if self.steps is not None:
            self.steps.after_step(optimizer)
        elif not self.optimizers:
            self._see_other_tensors(optimizer)

    def _see_other_tensors(self, optimizer: Any) -> None:
        """Listen to a model that learns, and to this optimizer, whose tensors have no gradients.

        Such an optimizer was made before the model was wrapped, copied or reloaded. One whose tensors have gradients
        may be meant to train these alone.
        """
        from tunecheck.listen.optimizers import optimizers_of

        model = self.candidate() if self.model is None else self.model
        if model is None or not (tensors := tensors_of(optimizer)) or any(p.grad is not None for p in tensors):
            return
        if any(p.grad is not None for p in model.parameters()) and not optimizers_of(model):
            self.optimizers = [optimizer]
            if self.model is None:
                self.model = model
                self._hook(model)

    # The end.

    @property
    def over(self) -> bool:
        """Whether a training was listened to, and nothing of it is held any more."""
        return self.steps is not None and self.steps.model is None

    def at_exit(self) -> None:
        """The process ends: so does its loop, and why none was listened to is told."""
        error = getattr(sys, "last_value", None)  # also kept of one that was caught, by pytest in a frame of its own
        begun = getattr(getattr(error, "__traceback__", None), "tb_frame", None)
        self.detach(error if begun and begun.f_globals.get("__name__") in ("__main__", "runpy") else None)
        if error is None and (saves := sys.modules.get("tunecheck.listen.saves")) is not None:
            self.hooks.guarded(saves.script_ends)()
        if why := self.why_not() or ("" if self.follows else told()):
            say(why)

    def why_not(self) -> str:
        """Return why a loop of this process was not listened to; "" where there was none, or it was."""
        if self.steps is not None or self.follows:
            return ""
        if not self.unheard:
            seen = f"a {self.kind} was called and differentiated ({self.differentiated}), but no torch optimizer"
            way_out = "pass model.parameters() to an optimizer of torch.optim, and call its step"
            why = f"{seen} stepped: tunecheck cannot recognise hand-written updates; {way_out}"
            return why if self.differentiated and self.kind else ""
        if self.model is None:
            compiled = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {}).get("frames")
            hint = "; torch.compile hides what it compiles: compile the model alone, not its step" if compiled else ""
            return f"{self.unheard} stepped, but {self.why or f'no module was called with gradients{hint}'}"
        return f"{self.unheard} stepped, but no optimizer holds parameters of the {type(self.model).__name__}"
