"""A loop that is not ours and no Trainer's: plain PyTorch, accelerate, Lightning.

Its moments are those that every loop has: the model's forward, `Tensor.backward`, `clip_grad_norm_`, the optimizer's
step. A window is all micro-batches between two steps. This is loaded as torch is imported, and imports nothing that the
program might not: the rest comes with the first forward pass that learns.
"""

import gc
import os
import sys
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial, wraps
from threading import get_ident
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch

from tunecheck.core.errors import Unsupported
from tunecheck.core.evidence import LoopEvaluations, LossDivided, OtherOptimizer
from tunecheck.core.premises import Premise
from tunecheck.listen.moments import LOSSES, StepMoments
from tunecheck.listen.options import rank_and_processes
from tunecheck.listen.problems import say
from tunecheck.listen.unheard import listened, told
from tunecheck.training.hooks import Hooks, inner_optimizer, nothing, same_optimizer, tensors_of

if TYPE_CHECKING:
    from tunecheck.listen.declared import WatchedRun
    from tunecheck.listen.division import LoopDivision
    from tunecheck.listen.listener import Listener
    from tunecheck.listen.loaders import Evaluations
    from tunecheck.listen.loop_loss import Pass
    from tunecheck.listen.loss_functions import LossCalls
    from tunecheck.listen.optimizers import OtherOptimizers, Schedules
    from tunecheck.listen.options import Options
    from tunecheck.listen.user_writes import UserWrites

NO_WHOLE_GRADIENT = "optimizers step within the backward pass, so the full gradient never exists"
"""What LOMO (arXiv 2306.09782) does."""
CLIPPED_IN_WINDOW = "gradients are clipped before the last backward pass of a step, and are not the sum over its rows"
MOST_NORM_ERROR = 1e-3
"""Of the norm that a loop clips by, against that of all gradients in float64."""
FEWEST_STEPS = 3
"""Of a training that follows another, to be told."""
MOST_LOOKS = 20
"""Modules whose optimizer is looked up before an optimizer's first step: each look walks the interpreter's objects."""


class LoopHooks(StepMoments):
    """What is hooked for as long as a loop is listened to, and the moments that follow from it."""

    def __init__(
        self,
        options: "Options",
        *,
        model: Any = None,
        optimizer: Any = None,
        tokenizer: Any = None,
        follows: bool = False,
    ) -> None:
        super().__init__()
        self.follows = follows
        """Whether another training of this process was listened to before, whose model may still be called."""
        self.options, self.model, self.tokenizer = options, model, tokenizer
        self.optimizers: list[Any] = [] if optimizer is None else [inner_optimizer(optimizer)]
        self.stepped: list[Any] = []
        """Of the optimizers, those that have stepped in the present step."""
        self.listener: Listener | None = None
        self.passes: list[Pass] = []
        """Forward passes that nothing was differentiated of so far."""
        self.left_open: dict[Premise, str] = {}
        self.division: LoopDivision | None = None
        self.factors: list[torch.Tensor | None] = []
        """Of the losses of a step's passes, in what is differentiated."""
        self.forwards = 0
        self.schedules: Schedules | None = None
        self.others: OtherOptimizers | None = None
        self.dropping: list[Any] = []
        """Modules that drop in train mode."""
        self.evaluations: list[tuple[int, bool]] = []
        """Steps before each pass without gradients, and whether the model drops in it."""
        self.loaded: list[Evaluations] = []
        """Those that draw their batches from loaders."""
        self.user_writes: UserWrites | None = None
        self.loss_calls: LossCalls | None = None
        self.thread = 0
        """In which the model is trained."""
        self.stepping = 0
        """Own optimizers that have begun to step and not ended: of one around another both."""
        self.run: WatchedRun | None = None
        self.autocast: torch.dtype | None = None
        self.inside = self.differentiating = self.clipped = False
        self.differentiated = ""
        """How gradients were taken, where they were."""
        self.entry: Any = None
        """What each pass calls: the model, or a part of one that is never called itself."""
        self.parts: WeakSet[Any] = WeakSet()
        """Parts of modules that are not what is trained."""
        self.looks = MOST_LOOKS
        self.references = 0
        """To the model, the fewest that were seen: fewer tell that the script may have dropped it."""
        self.candidate: Callable[[], Any] = nothing
        """The last module that was called with gradients and that no optimizer held."""
        self.unheard = self.why = self.kind = ""
        """Class of the last optimizer that stepped, why no module that was called is what it trains, and its class."""
        self.hooks = Hooks(self._failed)
        self.complete = self.hooks.guarded(self._ours(self._complete))

    def attach(self) -> None:
        """Begin to listen: to the model, where it is known, else to the first one that learns."""
        hooks, ours = self.hooks, self._ours
        self._found = hooks.before(None, self._find if self.model is None else self._find_entry, with_kwargs=True)
        hooks.function(torch.Tensor, "backward", before=ours(self._on_backward), after=ours(self._on_differentiated))
        hooks.function(torch.nn.utils, "clip_grad_norm_", before=ours(self._on_clip), after=ours(self._on_clipped))
        for loss in LOSSES:
            hooks.function(torch.nn.functional, loss, before=ours(partial(self._on_loss_call, loss)))
        hooks.function(torch.amp.GradScaler, "step", after=ours(self._on_scaler_step))
        hooks.optimizer_steps(self._on_step, ours(self._on_stepped))

    def detach(self, error: BaseException | None = None) -> None:
        """Put everything back, and end the trace."""
        if self.listener is not None:  # first: its probes have wrapped what is wrapped here, and put it back
            if error is None:
                self.listener.tried(self._tell_schedule)
                self.listener.tried(self._tell_window)
                self.listener.emit(*(each.record() for each in self.loaded))
            self.listener.close(error)
            short = self.follows and self.step < FEWEST_STEPS  # of an inner loop, say: nothing could be judged
            if short and self.listener.own:
                self.listener.path.unlink(missing_ok=True)
        self._unhook()

    def _unhook(self) -> None:
        self.hooks.remove()
        if self._collecting in gc.callbacks:
            gc.callbacks.remove(self._collecting)

    def _tell_schedule(self) -> None:
        schedules, self.schedules = self.schedules, None
        if self.listener is not None and schedules is not None:
            schedules.listened(self.step)
            self.listener.emit(*schedules.taken())

    def _tell_window(self) -> None:
        """Tell what was seen beside the probes in the steps that were listened to."""
        if self.listener is not None and self.user_writes is not None:
            self.listener.emit(*self.user_writes.record())
        if self.listener is not None and self.others is not None:
            self.listener.emit(*self.others.records())
        if self.listener is not None and self.dropping:
            # a pass in most of the steps is a part of them, as that of a teacher
            seldom = 2 * len({step for step, _ in self.evaluations}) <= self.step
            passes = [drops for _, drops in self.evaluations if seldom]
            self.listener.emit(LoopEvaluations(passes=len(passes), dropping=sum(passes)))
            self.dropping = []

    def _failed(self, reason: str) -> None:
        if self.listener is not None:
            self.listener.failed(reason)
        else:
            say(f"cannot watch this loop: {reason}")
            self.hooks.remove()

    def _ours(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return what calls this unless our own doing brought us here, out of the loop's autocast with its casts."""

        def called(*args: Any, **kwargs: Any) -> Any:
            if self.inside:
                return None
            self.inside = True
            try:
                kind = self._device().type
                self.autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
                # none in vain: within it, a forward that casts by itself would keep its casts of weights for the next
                with nullcontext() if self.autocast is None else torch.autocast(kind, enabled=False):
                    return call(*args, **kwargs)
            finally:
                self.inside = False

        return called

    def _device(self) -> torch.device:
        parameters = iter(()) if self.model is None else self.model.parameters()
        return next((parameter.device for parameter in parameters), torch.device("cpu"))

    # The model.

    def _find(self, module: Any, args: Any, given: dict[str, Any]) -> None:
        """The first call, with gradients, of a module that an optimizer trains finds the model."""
        if self.inside or not torch.is_grad_enabled() or self.model is not None:
            return
        if not self.looks or module in self.parts or not any(p.requires_grad for p in module.parameters()):
            return
        from tunecheck.listen.optimizers import optimizers_of
        from tunecheck.listen.trained_model import called_by_name, is_causal, trained_whole

        if is_causal(module) and not args and given.get("input_ids") is None:
            return  # its rows begin outside of it, as those of a captioner do: what calls it is the model
        if self.follows and not optimizers_of(module):
            return
        self.looks -= not is_causal(module)
        by_name = called_by_name(module) if args or given.get("input_ids") is not None else None
        self.model, self.why = trained_whole(by_name or module, again=module is self.candidate())
        self.kind = type(module).__name__
        if self.model is not None and is_causal(self.model) and module is self.model.get_input_embeddings():
            self.model = None  # what the script makes of its outputs is what the model gets
            return
        if self.model is None:
            if torch._C._functorch.peek_interpreter_stack() is not None:
                self.why = f"a transform of torch.func calls the {self.kind}"
            self.candidate = weakref.ref(module)
            self.parts.update(part for part in module.modules() if part is not module and not is_causal(part))
            return
        self._listen_to(module, args, given)

    def _find_entry(self, module: Any, args: Any, given: dict[str, Any]) -> None:
        """The first call of the model that was given finds what each pass calls: itself, or a part of it."""
        if self.inside or not torch.is_grad_enabled() or self.entry is not None:
            return
        from tunecheck.listen.trained_model import called_by_name, is_transformers

        own = not is_transformers(self.model) and any(module is part for part in self.model.modules())
        if module is self.model or own or called_by_name(module) is self.model:
            self._listen_to(module, args, given)

    def _listen_to(self, module: Any, args: Any, given: dict[str, Any]) -> None:
        """Listen to the calls of this module, the present one included, which goes on without a new hook."""
        self._hook(module)
        self._on_forward(module, args, given)

    def _hook(self, module: Any) -> None:
        self._found()
        self.entry = module
        self.hooks.before(module, self._on_forward, with_kwargs=True)
        self.hooks.after(module, self._ours(self._on_returned))
        from tunecheck.listen.trained_model import is_causal

        by_name = module is not self.model and is_causal(self.model)  # its part returns no scores
        if by_name and (head := self.model.get_output_embeddings()) is not None:
            self.hooks.after(head, self._ours(self._on_returned))

    def _on_forward(self, module: Any, args: Any, given: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            if self.listener is not None and self.listener.listening and self.thread != get_ident():
                raise Unsupported("another thread calls the model with gradients, too: its passes cannot be told apart")
            self._ours(self._forward)(args, given)
        elif self.dropping and not self.inside:
            self.evaluations.append((self.step, any(part.training for part in self.dropping)))

    def _forward(self, args: Any, given: dict[str, Any]) -> None:
        if self.listener is not None and not self.listener.listening:
            return
        if torch._C._functorch.peek_interpreter_stack() is not None:  # its tensors stand for others, without numbers
            self.differentiated = "by a transform of torch.func"
            return
        if self.listener is None and not self._begins(args, given):
            return
        assert self.listener is not None
        assert self.run is not None
        if self.stepped:  # not every optimizer steps each time
            self._stepped()
        if self.user_writes is not None:
            self.user_writes.end()
        if not self.listener.listening:
            return
        if not self.begun:
            self.window, self.passes, self.forwards, self.differentiating = [], [], 0, False
            self.step_begins(self.listener)
        from tunecheck.listen.batches import inputs_of, unknown_batch
        from tunecheck.listen.loop_loss import Pass

        if self.run.holds(Premise.CAUSAL_LM):
            self.passes.append(Pass(inputs_of(args, given)))
        else:
            self.unknown = unknown_batch(inputs_of(args, given), self._device())
            self.forwards += 1

    def _on_returned(self, module: Any, args: Any, out: Any) -> None:
        if self.passes and torch.is_grad_enabled():
            self.passes[-1].returned(out, of_head=module is not self.entry)

    def _begins(self, args: Any, given: dict[str, Any]) -> bool:
        from tunecheck.probes.reference.measures import looked_once

        with looked_once():
            return self._begin(args, given)

    def _begin(self, args: Any, given: dict[str, Any]) -> bool:
        """Begin to listen, if there is an optimizer already; one made after the first forward waits for the second."""
        from tunecheck.listen.batches import inputs_of, unknown_batch
        from tunecheck.listen.listener import Listener
        from tunecheck.listen.loaders import Evaluations
        from tunecheck.listen.loop_declared import cast_within, objective_of, run_of
        from tunecheck.listen.loop_loss import provisional
        from tunecheck.listen.loss_functions import LossCalls
        from tunecheck.listen.optimizers import OtherOptimizers, Schedules, optimizers_of, together
        from tunecheck.listen.session import session_of
        from tunecheck.listen.settings import settings_of
        from tunecheck.listen.trained_model import only_tokenizer, shared_loaders
        from tunecheck.listen.user_code import of_caller
        from tunecheck.listen.user_writes import UserWrites
        from tunecheck.training.restore import dropouts

        if self.options.purpose != "train":
            os._exit(0)  # a run of --twice, which a loop cannot be kept out of its folders in
        self.optimizers = self.optimizers or optimizers_of(self.model)
        if not self.optimizers:
            return False
        self.schedules, self.loss_calls = Schedules(self.optimizers), LossCalls()
        self.others = OtherOptimizers(self.optimizers, self.model)
        self.dropping = [module for module, _, _ in dropouts(self.model)]
        counting = [m for m in self.model.modules() if getattr(m, "num_batches_tracked", None) is not None]
        if self.dropping or counting:
            self.loaded = [Evaluations(self.model, [*self.dropping, *counting], lambda: self.step)]
        optimizer, inputs = together(self.optimizers), inputs_of(args, given)
        objective = objective_of(self.model, inputs)
        batch = (unknown_batch if objective else provisional)(inputs, self._device())
        self.listener, self.thread = Listener(self.options), get_ident()
        within = None if objective else cast_within(self.model, batch)
        self.run = run = run_of(self.model, optimizer, self.listener, within or self.autocast, objective)
        held = {"optimizer": optimizer, "tokenizer": self.tokenizer or only_tokenizer(), "entry": self.entry}
        session = session_of(run, self.model, [batch], autocast=within is not None, **held)
        self.listener.begin(session, "AdamW" if run.holds(Premise.UPDATE_RULE_KNOWN) else "")
        self.listener.emit(*of_caller(), *shared_loaders(), settings_of(self.model, self.optimizers))
        gc.callbacks.append(self._collecting)
        if run.holds(Premise.TRAINED_UNWRITTEN):
            self.user_writes = UserWrites(self.model, self._failed)
        return True

    # A step.

    def _on_loss_call(self, name: str, *given: Any, **named: Any) -> None:
        if self.begun and not self.step and self.loss_calls is not None:
            self.loss_calls.called(name, *given, **named)

    def _on_backward(self, tensor: torch.Tensor, *_: Any, **__: Any) -> None:
        """A loss is about to be differentiated: what it is made of is the window's."""
        self.differentiating, self.differentiated = True, "by backward"
        if self.clipped and self.listener is not None and any(p.grad is not None for p in self.model.parameters()):
            self.clipped = False
            self.listener.left_open({Premise.GRADIENT_SUMMED: CLIPPED_IN_WINDOW})
        if not self.begun or self.done_backward or tensor.numel() != 1 or self.run is None:
            return
        from tunecheck.listen.division import LoopDivision
        from tunecheck.listen.loop_loss import loss_of
        from tunecheck.listen.loss_functions import scores_given

        if not (self.step or self.window) and self.listener is not None and self.loss_calls is not None:
            self.listener.emit(scores_given(tensor, self.loss_calls))
        self.division = (self.division or LoopDivision()) if self.step < 2 else None
        divides = nothing if self.division is None else partial(self.division.differentiates, tensor, self.model)
        if not self.run.holds(Premise.CAUSAL_LM):
            # of losses whose gradients were cleared again, as those of a bad batch, nothing is left in the step
            self.losses = [tensor.detach()]
            self.window.append(self.unknown)
            divides(own_pass=self.forwards == len(self.window))
            return
        self.losses.append(tensor.detach())
        loss = loss_of(tensor, self.passes)
        divides(own_pass=len(loss.passes) == 1)
        self.factors.append(loss.factor(tensor))
        for each in loss.passes:
            batch, left_open = loss.batch(each, self.model.device)
            self.window.append(batch)
            self.left_open |= left_open
        self.passes = [each for each in self.passes if each not in loss.passes]

    def _on_differentiated(self, *_: Any, **__: Any) -> None:
        self.differentiating = False

    def _on_clip(self, parameters: Any, max_norm: float, *_: Any, **__: Any) -> None:
        """Gradients are about to be clipped: they are complete. Those of an unknown model may be clipped in parts."""
        if self.begun and self.run is not None and self.run.holds(Premise.CAUSAL_LM):
            vars(self.run.training)["max_grad_norm"] = float(max_norm)  # frozen, and known only now
            self._backward_end()
            self.clipped = True

    def _on_clipped(self, norm: Any, *_: Any, **__: Any) -> None:
        """Gradients were clipped: those of the whole model, by the norm that we know, or others."""
        if not self.begun or self.listener is None or self.run is None or not self.run.holds(Premise.CAUSAL_LM):
            return
        self.norm = norm
        # torch takes a norm in the gradients' dtype: each tensor's is rounded to it, and that of all of them again
        dtypes = {p.grad.dtype for p in self.model.parameters() if p.grad is not None}
        rounding = max((torch.finfo(dtype).eps for dtype in dtypes), default=0.0)
        if abs(float(norm) - self.own_norm) > max(MOST_NORM_ERROR, rounding) * self.own_norm:
            self.listener.left_open({Premise.CLIPPED_WHOLE: "gradients are clipped in parts, or with another norm"})

    def _on_step(self, optimizer: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        """An optimizer is about to step: with a closure the passes are yet to come, as in Lightning."""
        if not self.inside and not self._is_own(optimizer):
            self._end_before(optimizer)
        if self.others is not None and not self.inside:
            self.others.before_step(optimizer)
        self.stepping += not self.inside and self._is_own(optimizer)
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if self.inside or not callable(closure):
            self.complete(optimizer)
            return None

        @wraps(closure)
        def watched() -> Any:
            value = closure()
            self.complete(optimizer)
            return value

        return ((args[0], watched, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": watched})

    def _complete(self, optimizer: Any) -> None:
        if self.begun and self._is_own(optimizer):
            if self.differentiating:
                self.left_open[Premise.GRADIENT_WHOLE] = NO_WHOLE_GRADIENT
            self._backward_end()

    def _is_own(self, optimizer: Any) -> bool:
        return any(same_optimizer(optimizer, own) for own in self.optimizers)

    def _end_before(self, optimizer: Any) -> None:
        """End this one where another training of the model begins, as that of a second call of the same function."""
        if self.listener is None or not self.listener.listening:
            return
        if {*map(id, tensors_of(optimizer))}.isdisjoint(map(id, self.model.parameters())):
            return
        kind = type(optimizer).__name__
        why = f"from step {self.step} another {kind} trains the model: only earlier steps are judged"
        self.listener.left_open({Premise.TRAINED_SET_DECLARED: why})
        if self.step < FEWEST_STEPS and kind in [type(own).__name__ for own in self.optimizers]:
            held = len(tensors_of(optimizer))
            self.listener.emit(OtherOptimizer(name=kind, tensors=held, model_steps=self.step, anew=True))
        self._let_go()

    def _backward_end(self) -> None:
        assert self.listener is not None
        if self.done_backward:
            return
        self.done_backward = True
        if self.others is not None:
            self.others.before_model_step()
        from tunecheck.listen.loop_loss import WEIGHED, weighed_apart
        from tunecheck.listen.optimizers import highest_rate, without_rate

        if weighed_apart(self.factors, [batch.supervised_tokens for batch in self.window]):
            self.left_open[Premise.TOKEN_MEAN_LOSS] = WEIGHED
            self.listener.emit(LossDivided(micro_batches=len(self.window), by="", uneven=True))
        self.listener.left_open(self.left_open)

        self.rate, self.without_rate = highest_rate(*self.optimizers), without_rate(*self.optimizers)
        self.gradients_complete(self.listener, self.model)

    def _on_stepped(self, optimizer: Any, *_: Any) -> None:
        self.unheard, self.looks = type(optimizer).__name__, max(1, self.looks)
        if self.listener is None and not self.optimizers:
            self._see_other_tensors(optimizer)
        if not self._is_own(optimizer):
            return
        self.stepping = max(0, self.stepping - 1)
        if self.begun and not self.stepping:
            self.stepped.append(optimizer)
            if len(self.stepped) == len(self.optimizers):
                self._stepped()

    def _see_other_tensors(self, optimizer: Any) -> None:
        """Listen to a model that learns, and to this optimizer, whose tensors have no gradients.

        Such an optimizer was made before the model was wrapped, copied or reloaded. One whose tensors have gradients
        may be meant to train these alone.
        """
        from tunecheck.listen.optimizers import optimizers_of

        model = self.candidate() if self.model is None else self.model
        tensors = tensors_of(optimizer)
        if model is None or not tensors or any(p.grad is not None for p in tensors):
            return
        if any(p.grad is not None for p in model.parameters()) and not optimizers_of(model):
            self.optimizers = [optimizer]
            if self.model is None:
                self.model = model
                self._hook(model)

    def _on_scaler_step(self, result: Any, scaler: Any, optimizer: Any, *_: Any, **__: Any) -> None:
        """A scaler has stepped its optimizer, or left it out for a gradient that is not finite."""
        if self.begun and scaler.is_enabled() and self._is_own(optimizer):
            self._backward_end()
            self._stepped(applied=False)

    def _stepped(self, *, applied: bool = True) -> None:
        assert self.listener is not None
        self.stop_clock()
        if self.division is not None:
            self.listener.emit(*self.division.divided())
            self.division = None if self.step else self.division
        self.begun, self.clipped, self.stepped, self.passes, self.stepping = False, False, [], [], 0
        self.factors = []
        self.step_ends(self.listener, applied=applied)
        self._remember()
        self.step += 1
        if not self.follows or self.step >= FEWEST_STEPS:
            listened(*self.optimizers)
        if not self.listener.listening:
            self._let_go()
            return
        if self.user_writes is not None:
            self.user_writes.begin()
        self.references = self._references()

    def _references(self) -> int:
        from tunecheck.listen.trained_model import anchor_of

        return sys.getrefcount(anchor_of(self.model))

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        """Let go of a model that the script has dropped before its window was over: the collection then frees it."""
        if phase == "start" and info["generation"] == 2 and not self.inside and not self.begun:
            self._ours(self._drop)()

    def _drop(self) -> None:
        if self.listener is None or (references := self._references()) >= self.references:
            return
        from tunecheck.listen.trained_model import anchor_of
        from tunecheck.listen.user_code import is_held

        self.references = references
        if not is_held(anchor_of(self.model)):
            self._let_go()

    @property
    def over(self) -> bool:
        """Whether a training was listened to, and nothing of it is held any more."""
        return self.listener is not None and self.model is None

    def _let_go(self) -> None:
        """Release everything of the script's after the last step; its saves are still heard."""
        from tunecheck.listen.optimizers import heard
        from tunecheck.listen.trained_model import anchor_of

        assert self.listener is not None
        heard(*self.optimizers)
        self.listener.tried(self.listener.end_of_listening)
        self.listener.tried(self._tell_window)
        if self.schedules is not None:
            self.schedules.listened(self.step)
        self._unhook()
        weakref.finalize(anchor_of(self.model), self.listener.tried, self._tell_schedule).atexit = False
        self.model = self.entry = self.user_writes = self.others = self.loss_calls = self.norm = None
        self.optimizers, self.window, self.losses, self.parts = [], [], [], WeakSet()

    def _remember(self) -> None:
        """Have what the script merges and saves of the model read back, from the first step on."""
        if self.listener is None or self.run is None or not self.run.holds(Premise.CAUSAL_LM):
            return
        if self.step == 0 and self.window and rank_and_processes()[0] == 0:
            first = self.window[0]
            ids = first.input_ids[:1][:, first.attention_mask[0].bool()]
            self.listener.read_back_saves(self.model, ids, self._ours(self.listener.end_of_listening))

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
        if self.listener is not None or self.follows:
            return ""
        if not self.unheard:
            seen = (
                f"a {self.kind} was called and differentiated ({self.differentiated}), but no torch optimizer stepped: "
                "tunecheck cannot recognise hand-written updates; pass model.parameters() to an optimizer of "
                "torch.optim, and call its step"
            )
            return seen if self.differentiated and self.kind else ""
        if self.model is None:
            return f"{self.unheard} stepped, but {self.why or 'no module was called with gradients'}"
        return f"{self.unheard} stepped, but no optimizer holds parameters of the {type(self.model).__name__}"
