"""The steps of a loop that is listened to: a window is all micro-batches between two. In the watched process only."""

import gc
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import Any

import torch

from tunecheck.core.errors import Unsupported
from tunecheck.core.evidence import LoopEvaluations, LossDivided
from tunecheck.core.premises import Premise
from tunecheck.listen.batches import inputs_of, unknown_batch
from tunecheck.listen.declared import run_of_loop, session_of
from tunecheck.listen.division import LoopDivision
from tunecheck.listen.listener import Listener
from tunecheck.listen.loaders import Evaluations
from tunecheck.listen.loop_loss import WEIGHED, Pass, loss_of, provisional, weighed_apart
from tunecheck.listen.loss_calls import LossCalls
from tunecheck.listen.loss_functions import scores_given
from tunecheck.listen.optimizers import HEARD, OtherOptimizers, Schedules, highest_rate, together, without_rate
from tunecheck.listen.options import rank_and_processes
from tunecheck.listen.policy_loss import penalties_of
from tunecheck.listen.settings import settings_of
from tunecheck.listen.source import read_source
from tunecheck.listen.trained_model import anchor_of, device_of, is_causal, objective_of, only_tokenizer, shared_loaders
from tunecheck.listen.unheard import listened
from tunecheck.listen.user_code import UserWrites, is_held, of_caller
from tunecheck.models.layer_names import as_written, decoder_of
from tunecheck.training.data import Batch
from tunecheck.training.events import at_work, probing
from tunecheck.training.hooks import OwnHooks, same_optimizer, tensors_of
from tunecheck.training.restore import dropouts, model_mode, random_state, uncached, uncast, without_repacking

NO_WHOLE_GRADIENT = "optimizers step within the backward pass, so the full gradient never exists"
"""What LOMO (arXiv 2306.09782) does."""
CLIPPED_IN_WINDOW = "gradients are clipped before the last backward pass of a step, and are not the sum over its rows"
FEWEST_STEPS = 3
"""Of a training that follows another, which is told then: a shorter one may be an inner loop."""


def cast_within(model: Any, batch: Batch) -> torch.dtype | None:
    """Return the dtype to which the model's own forward casts, by a pass of one token; None without autocast."""
    seen: list[torch.dtype | None] = []

    def look(*_: Any) -> None:
        kind = model.device.type
        seen.append(torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None)

    with OwnHooks() as hooks, model_mode(model, False), random_state(model.device), without_repacking(model):
        hooks.before(decoder_of(model), look)
        with torch.no_grad():
            uncached(model, input_ids=batch.input_ids[:1, :1].to(model.device))
    return seen[0] if seen else None


class LoopSteps(Listener):
    """What a loop does with its model and optimizers, step by step."""

    def __init__(self, loop: Any, args: Any, given: dict[str, Any]) -> None:
        """The model of this `LoopHooks` is first called with these. Raises Unsupported for rows without tokens."""
        inputs = inputs_of(args, given)
        objective = objective_of(loop.model, [inputs])
        first = (unknown_batch if objective else provisional)(inputs, device_of(loop.model))
        super().__init__(loop.options)
        self.model, self.optimizers, self.hooks = loop.model, loop.optimizers, loop.hooks
        self.fewest = FEWEST_STEPS if loop.follows else 0
        self.objective, self.window = objective, [first]
        """Why rows and loss are not those of a causal language model; and what the model was called with."""
        self.stepped: list[Any] = []
        """Of the optimizers, those that have stepped in the present step."""
        self.stepping = 0
        """Of the optimizers, how many have begun to step and not ended: of one around another both."""
        self.passes: list[Pass] = []
        """Forward passes that nothing was differentiated of so far."""
        self.forwards = 0
        """Their number, where the rows are unknown."""
        self.doubts: dict[Premise, str] = {}
        """Premises that the present step leaves open."""
        self.division: LoopDivision | None = LoopDivision()
        self.factors: list[torch.Tensor | None] = []
        """Of the losses of a step's passes, in what is differentiated."""
        self.schedules, self.loss_calls = Schedules(self.optimizers), LossCalls()
        self.others = OtherOptimizers(self.optimizers, self.model)
        self.user_writes: UserWrites | None = None
        self.dropping = [module for module, _, _ in dropouts(self.model)]
        """Modules that drop in train mode."""
        self.evaluations: list[tuple[int, bool]] = []
        """Steps before each pass without gradients, and whether the model drops in it."""
        counting = [m for m in self.model.modules() if getattr(m, "num_batches_tracked", None) is not None]
        self.noisy = [*self.dropping, *counting]
        """Those, and modules that normalise by their batches."""
        self.loaded = [Evaluations(self.model, self.noisy, lambda: self.step)] if self.noisy else []
        """Evaluations that draw their batches from loaders."""
        self.thread = get_ident()
        self.autocast: torch.dtype | None = None
        self.differentiating = self.clipped = False
        self.references = 0
        """To the model, the fewest that were seen: fewer tell that the script may have dropped it."""

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Have a moment be our own doing, out of the loop's autocast with its casts."""
        kind = "cpu" if self.model is None else device_of(self.model).type
        self.autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        with at_work(), uncast(kind):
            yield

    def listen(self, entry: Any, tokenizer: Any) -> None:
        """Hook what a step consists of, and let the probes look; `entry` is what each pass calls."""
        model, hooks = self.model, self.hooks
        hooks.after(entry, partial(self._on_returned, False))
        by_name = as_written(entry) is not model and is_causal(model)  # its part returns no scores
        if by_name and (head := model.get_output_embeddings()) is not None:
            hooks.after(head, partial(self._on_returned, True))
        hooks.function(torch.Tensor, "backward", before=self._on_backward, after=self._on_differentiated)
        hooks.function(torch.nn.utils, "clip_grad_norm_", before=self._on_clip, after=self._on_clipped)
        self.loss_calls.hear(hooks)
        hooks.function(torch.amp.GradScaler, "step", after=self._on_scaler_step)

        optimizer = together(self.optimizers)
        within = None if self.objective else cast_within(model, self.window[0])
        self.run = run = run_of_loop(model, optimizer, self, within or self.autocast, self.objective, entry)
        held = {"tokenizer": tokenizer or only_tokenizer(), "entry": entry, "cast": self.autocast}
        session = session_of(run, model, self.window, optimizer=optimizer, autocast=within is not None, **held)
        self.begin(session, "AdamW" if run.holds(Premise.UPDATE_RULE_KNOWN) else "")
        self.emit(*of_caller(), *read_source(model), *shared_loaders(), settings_of(model, self.optimizers))
        gc.callbacks.append(self._collecting)
        hooks.callback(gc.callbacks.remove, self._collecting)
        if run.holds(Premise.TRAINED_UNWRITTEN):
            self.user_writes = UserWrites(model, self.failed)

    # The model.

    def forward(self, args: Any, given: dict[str, Any]) -> None:
        """A pass with gradients begins."""
        if self.listening and self.thread != get_ident():
            if torch._C._current_graph_task_id() != -1:  # of a checkpoint around the model, in autograd's own thread
                return
            raise Unsupported("another thread calls the model with gradients, too: its passes cannot be told apart")
        if self.stepped:  # not every optimizer steps each time
            self._stepped()
        if self.user_writes is not None:
            self.user_writes.end()
        if not self.listening:
            return
        if not self.begun:
            self.window, self.passes, self.forwards, self.differentiating = [], [], 0, False
            self.step_begin()
        if self.objective:
            self.unknown = unknown_batch(inputs_of(args, given), device_of(self.model))
            self.forwards += 1
        else:
            self.passes.append(Pass(inputs_of(args, given)))

    def _on_returned(self, of_head: bool, module: Any, args: Any, out: Any) -> None:
        if self.passes and torch.is_grad_enabled():
            self.passes[-1].returned(out, of_head=of_head)

    def evaluates(self) -> None:
        """A pass without gradients begins."""
        if self.dropping:
            self.evaluations.append((self.step, any(part.training for part in self.dropping)))

    # A step.

    def _on_backward(self, tensor: torch.Tensor, *_: Any, **__: Any) -> None:
        """A loss is about to be differentiated: what it is made of is the window's."""
        self.differentiating = True
        if self.clipped and any(p.grad is not None for p in self.model.parameters()):
            self.clipped = False
            self.left_open({Premise.GRADIENT_SUMMED: CLIPPED_IN_WINDOW})
        if not self.begun or self.done_backward or tensor.numel() != 1:
            return
        if not (self.step or self.window):
            self.loss_calls.repeats = self._repeats()
            self.emit(scores_given(tensor, self.loss_calls))
        elif self.step == FEWEST_STEPS and not self.window and self.rate > 0:
            self.emit(penalties_of(tensor))
        if self.objective:
            # of losses whose gradients were cleared again, as those of a bad batch, nothing is left in the step
            self.losses = [tensor.detach()]
            self.window.append(self.unknown)
            # as many for each, as of two answers
            passes = 0 if self.forwards % len(self.window) else self.forwards // len(self.window)
        else:
            loss = loss_of(tensor, self.passes)
            passes = len(loss.passes)
            self.losses.append(tensor.detach())
            self.factors.append(loss.factor(tensor))
            for each in loss.passes:
                batch, left_open = loss.batch(each, self.model.device)
                self.window.append(batch)
                self.doubts |= left_open
            self.passes = [each for each in self.passes if each not in loss.passes]
        if self.division is not None:
            self.division.differentiates(tensor, self.model, passes)

    def _repeats(self) -> float:
        """Return how far rounding has ratios of likelihoods in two passes be from 1; 0 where the model draws anew."""
        if any(part.training for part in self.noisy):
            return 0.0
        return 0.05 if self.autocast is None and {p.dtype for p in self.model.parameters()} == {torch.float32} else 0.2

    def _on_differentiated(self, *_: Any, **__: Any) -> None:
        self.differentiating = False

    def _on_clip(self, parameters: Any, max_norm: float, *_: Any, **__: Any) -> None:
        """Gradients are about to be clipped: they are complete. Those of an unknown model may be clipped in parts."""
        if self.begun and not self.objective:
            self.run.training.max_grad_norm = float(max_norm)
            self._backward_end()
            self.clipped = True

    def _on_clipped(self, norm: Any, *_: Any, **__: Any) -> None:
        """Gradients were clipped: those of the whole model, by the norm that we know, or others."""
        if not self.begun or self.objective or not self.listening:
            return
        self.norm = norm
        # torch takes a norm in the gradients' dtype: each tensor's is rounded to it, and that of all of them again
        dtypes = {p.grad.dtype for p in self.model.parameters() if p.grad is not None}
        rounding = max((torch.finfo(dtype).eps for dtype in dtypes), default=0.0)
        if abs(float(norm) - self.own_norm) > max(1e-3, rounding) * self.own_norm:
            self.left_open({Premise.CLIPPED_WHOLE: "gradients are clipped in parts, or with another norm"})

    def _is_own(self, optimizer: Any) -> bool:
        return any(same_optimizer(optimizer, own) for own in self.optimizers)

    def before_step(self, optimizer: Any) -> None:
        """An optimizer is about to step, or to call its closure first."""
        if self._is_own(optimizer):
            self.stepping += 1
        elif self.listening:
            self._end_before(optimizer)
        self.others.before_step(optimizer)

    def _end_before(self, optimizer: Any) -> None:
        """End this one where another training of the model begins, as that of a second call of the same function."""
        if {*map(id, tensors_of(optimizer))}.isdisjoint(map(id, self.model.parameters())):
            return
        kind = type(optimizer).__name__
        why = f"from step {self.step} another {kind} trains the model: only earlier steps are judged"
        self.left_open({Premise.TRAINED_SET_DECLARED: why})
        if self.step < FEWEST_STEPS and kind in [type(own).__name__ for own in self.optimizers]:
            self.emit(*self.others.takes_over(optimizer, self.step))
        self._let_go()

    def complete(self, optimizer: Any) -> None:
        """An optimizer is about to step, its closure was called: if it is the loop's own, gradients are complete."""
        if self.begun and self._is_own(optimizer):
            if self.differentiating:
                self.doubts[Premise.GRADIENT_WHOLE] = NO_WHOLE_GRADIENT
            self._backward_end()

    def _backward_end(self) -> None:
        if self.done_backward:
            return
        self.others.before_model_step()
        if weighed_apart(self.factors, [batch.supervised_tokens for batch in self.window]):
            self.doubts[Premise.TOKEN_MEAN_LOSS] = WEIGHED
            self.emit(LossDivided(micro_batches=len(self.window), by="", uneven=True))
        self.left_open(self.doubts)
        self.rate, self.without_rate = highest_rate(*self.optimizers), without_rate(*self.optimizers)
        self.backward_end()

    def after_step(self, optimizer: Any) -> None:
        """An optimizer has stepped."""
        if not self._is_own(optimizer):
            return
        self.stepping = max(0, self.stepping - 1)
        if self.begun and not self.stepping:
            self.stepped.append(optimizer)
            if len(self.stepped) == len(self.optimizers):
                self._stepped()

    def _on_scaler_step(self, result: Any, scaler: Any, optimizer: Any, *_: Any, **__: Any) -> None:
        """A scaler has stepped its optimizer, or left it out for a gradient that is not finite."""
        if self.begun and scaler.is_enabled() and self._is_own(optimizer):
            self._backward_end()
            self._stepped(applied=False)

    def _stepped(self, *, applied: bool = True) -> None:
        if self.division is not None:
            self.emit(*self.division.divided())
            self.division = None if self.step else self.division
        self.clipped, self.stepping, self.loss_calls.over = False, 0, True
        self.stepped, self.passes, self.factors = [], [], []
        self.step_end(applied=applied)
        if self.step == 0 and self.window and not self.objective and rank_and_processes()[0] == 0:
            first = self.window[0]
            self.read_back_saves(self.model, first.input_ids[:1][:, first.attention_mask[0].bool()])
        self.step += 1
        if self.step >= self.fewest:
            listened(*self.optimizers)
        if not self.listening:
            self._let_go()
            return
        if self.user_writes is not None:
            self.user_writes.begin()
        self.references = sys.getrefcount(anchor_of(self.model))

    # The end.

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        """Let go of a model that the script has dropped before its window was over: the collection then frees it."""
        if phase != "start" or info["generation"] != 2 or probing() or self.begun:
            return
        if (references := sys.getrefcount(anchor_of(self.model))) < self.references:
            self.references = references
            if not is_held(anchor_of(self.model)):
                with self.ours():
                    self._let_go()

    def _let_go(self) -> None:
        """Release everything of the script's after the last step; its saves are still heard."""
        HEARD.update(self.optimizers)
        self.tried(self.end_of_listening)
        self.tried(self._tell_window)
        self.schedules.listened(self.step)
        weakref.finalize(anchor_of(self.model), self.tried, self._tell_schedules).atexit = False
        self._release()

    def _release(self) -> None:
        """Keep nothing of the script's: what reads back later saves keeps this listener."""
        self.hooks.remove()
        self.model = self.norm = None
        self.optimizers, self.window, self.losses, self.noisy = [], [], [], []

    def close(self, error: BaseException | None = None) -> None:
        """End the trace of a loop that has ended, or raised this."""
        if error is None:
            self.tried(self._tell_schedules)
            self.tried(self._tell_window)
            self.emit(*(each.record() for each in self.loaded))
        super().close(error)
        self._release()
        if self.step < self.fewest and self.own:
            self.path.unlink(missing_ok=True)

    def _tell_schedules(self) -> None:
        self.schedules.listened(self.step)
        self.emit(*self.schedules.taken())

    def _tell_window(self) -> None:
        """Tell, once, what was seen beside the probes in the steps that were listened to."""
        if self.user_writes is not None:
            self.emit(*self.user_writes.record())
            self.user_writes = None
        self.emit(*self.others.records())
        if self.dropping:
            # a pass in most of the steps is a part of them, as that of a teacher
            seldom = 2 * len({step for step, _ in self.evaluations}) <= self.step
            passes = [drops for _, drops in self.evaluations if seldom]
            self.emit(LoopEvaluations(passes=len(passes), dropping=sum(passes)))
            self.dropping = []
