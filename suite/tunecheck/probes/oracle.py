"""One accumulation window computed again by other code: its rows without masks, losses summed, one division.

The gradient of a window is the sum of its rows' gradients, however a trainer splits, pads and packs them. So one
comparison covers padding, masks, the shift of the labels, packing, accumulation and the loss itself. What a model
computes otherwise than the oracle is left out where loss and gradient are taken from the trainer's own logits.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import pairwise

import torch

from tunecheck.checks.utilization import PROBED_STEPS
from tunecheck.core.evidence import Oracle, OwnLoss, OwnRowsGradient
from tunecheck.core.premises import Premise
from tunecheck.probes.reference.forwards import FirstCall, IdsAndLabels, supervised_logits
from tunecheck.probes.reference.given import stand_still
from tunecheck.probes.reference.measures import differences, random_digest, sketch
from tunecheck.probes.reference.own_logits import OwnLogits, unpadded
from tunecheck.training.data import IGNORED, Batch
from tunecheck.training.events import Probe
from tunecheck.training.restore import as_found, in_fp32, kept_values, own_gradients, random_state, without_dropout
from tunecheck.training.session import Session
from tunecheck.training.tensors import gradients_of, whole

SLOPE_SHARE = 4e-4
"""Share of the loss by which it changes to either side: far above fp32's rounding, and nearly straight."""
OF_MEANS = ", the mean of their means"
NEGLIGIBLE_SHARE = 1e-3
"""Tensors with less than this share of the whole gradient's norm are rounding noise and are not judged one by one."""
Tensors = list[torch.Tensor]
Wanted = tuple[float, Tensors, str]
"""Loss and gradient of a window, and how it is split."""


class OracleProbe(Probe[Oracle | OwnRowsGradient]):
    """Computes the run's oracle steps beforehand and compares the gradients when the trainer's are complete."""

    def start(self, session: Session) -> None:
        # with dropout the trainer's random masks cannot be known: it must be able to make its passes again without
        self._dropout = session.run.uses_dropout
        asked, last = session.run.probes.oracle_steps, session.run.training.max_steps
        known = not self._dropout or session.replay is not None
        self._steps = {step % last for step in asked} if known else set()  # -1 is the last one
        trainable = {name: p for name, p in session.model.named_parameters() if p.requires_grad}
        self._names, self._parameters = [*trainable], [*trainable.values()]
        self._waiting: list[Wanted] = []
        self._directional = max(self._steps, default=-1) if session.run.probes.directional_gradient else -1
        self._slope_error: float | None = None

    def step_begin(self, session: Session, step: int, window: Sequence[Batch]) -> None:
        """Compute this window's loss and gradient; the trainer's gradients (left over or not) are put back."""
        if step not in self._steps or not any(batch.supervised_tokens for batch in window):  # of no tokens it is 0/0
            return
        means: dict[str, Callable[[], float]] = {"": partial(_window_loss_backward, session, window)}
        tokens = {batch.supervised_tokens for batch in window}
        if not session.run.holds(Premise.MEAN_DECLARED) and len(tokens) > 1 and 0 not in tokens:
            alone = partial(_window_loss_backward, session, share=1 / len(window))
            means[OF_MEANS] = lambda: sum(alone([batch]) for batch in window)  # of a loop that declares nothing
        self._waiting = []
        for how, loss_backward in means.items():
            with as_found(session.model), without_dropout(session.model) if self._dropout else nullcontext():
                loss, gradients = _loss_and_gradients(self._parameters, loss_backward)
            # Until the trainer's are complete they would add 4 bytes a trained parameter to the run's peak on the card.
            gradients = [gradient.cpu() for gradient in gradients]
            self._waiting.append((loss, gradients, f"{len(window)} x {len(window[0].keys)} rows{how}"))
        if step == self._directional:
            with in_fp32(session.model) as wide:  # whatever the run's own arithmetic is
                parameters = [wide.get(p, p) for p in self._parameters]
                fine = partial(_window_loss_backward, session, window, cast=False)
                loss, gradients = _loss_and_gradients(parameters, fine)
                with torch.no_grad():
                    self._slope_error = _slope_error(session, window, [*map(whole, parameters)], gradients, loss)

    def backward_end(self, session: Session, step: int) -> None:
        window = session.window
        if not self._waiting:  # the window is known only now
            self.step_begin(session, step, window)
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        replayed, got = None, gradients_of(self._parameters)
        if self._dropout and session.replay is not None:
            with as_found(session.model), without_dropout(session.model), random_state(session.device):
                replayed, got = _loss_and_gradients(self._parameters, session.replay)
        if session.processes > session.exchange.count:  # of the other processes' rows nothing is known here
            own, tokens = tuple(sketch(wanted) for _, wanted, _ in waiting), [b.supervised_tokens for b in window]
            self.emit(OwnRowsGradient(step=step, got=sketch(got), own=own, tokens=sum(tokens)))
        for loss, wanted, split in waiting:
            errors, norms = differences(got, wanted)
            norm, whole = float(norms.norm()), float(errors.norm())
            errors = torch.where(norms > NEGLIGIBLE_SHARE * norm, errors / norms, 0)
            worst = int(errors.argmax())
            seen = Oracle(
                step=step,
                loss=loss,
                replayed_loss=replayed,
                gradient_error=whole / norm if norm else float("nan"),
                worst_gradient_error=float(errors[worst]),
                worst_gradient=self._names[worst],
                norm=norm,
                split=split,
                of_means=split.endswith(OF_MEANS),
                directional_error=self._slope_error if step == self._directional else None,
            )
            self.emit(seen)


def _loss_and_gradients(parameters: Tensors, loss_backward: Callable[[], float]) -> tuple[float, Tensors]:
    """Return a loss and its gradient; the parameters' own gradients are put back."""
    with own_gradients(parameters):
        return loss_backward(), gradients_of(parameters)


def _documents(window: Sequence[Batch]) -> list[IdsAndLabels]:
    """Return the window's documents: its rows, and those that hold several, cut where positions begin again."""
    found = []
    for batch in window:
        rows = unpadded([batch])
        if batch.position_ids is None:
            found += rows
            continue
        for (ids, labels), given, mask in zip(rows, batch.position_ids, batch.attention_mask, strict=True):
            positions = given[mask.bool()].tolist()
            # where they stand still there are no documents of one token each, but a row whose positions are wrong
            within = [] if stand_still(positions) else [at for at, place in enumerate(positions) if at and not place]
            found += [(ids[start:end], labels[start:end]) for start, end in pairwise([0, *within, len(ids)])]
    return found


def _slope_error(
    session: Session, window: Sequence[Batch], parameters: Tensors, gradients: Tensors, loss: float
) -> float:
    """How far the loss's slope, each tensor moved along its unit gradient, is from the sum of the gradients' norms."""
    norms = torch.stack([norm.float() for norm in torch._foreach_norm(gradients)])
    if not (promised := float(norms.sum())):
        return float("nan")
    width = SLOPE_SHARE * loss / promised
    losses = []
    for side in (width, -width):
        with kept_values(parameters):
            for parameter, gradient, norm in zip(parameters, gradients, norms, strict=True):
                parameter.add_(side * gradient / norm.clamp(min=1e-30))
            losses.append(_window_loss_backward(session, window, cast=False))
    return abs((losses[0] - losses[1]) / (2 * width) - promised) / promised


def _window_loss_backward(session: Session, window: Sequence[Batch], share: float = 1.0, *, cast: bool = True) -> float:
    """This share of the mean negative log-likelihood per supervised token; its gradient is added to the parameters'.

    It is computed under the training's own autocast, unless `cast` is false.
    """
    counted = [(row, int((row[1][1:] != IGNORED).sum())) for row in _documents(window)]
    rows, supervised = [row for row, learnt in counted if learnt], sum(learnt for _, learnt in counted)
    total = 0.0
    tokens = max(batch.input_ids.numel() for batch in window)
    for logits, wanted in supervised_logits(session, rows, torch.float32, tokens, cast=cast):
        # the cross entropy's own kernel, with its rounding: against logsumexp the gradient of SmolLM2 is off by 1e-4 on
        # a CPU, as much as the limit (49,152 classes summed in fp32). The evaluation's oracle does without, in fp64
        loss = -logits.log_softmax(dim=-1).gather(1, wanted[:, None]).sum() * share / supervised
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    return total


REPEATED = 2
"""The step whose first forward is carried out once more: the first in which adapters do something. What was random at
the start of the run, or was exchanged, is told by other probes; this costs one micro-batch's forward."""


class OwnLossProbe(Probe[OwnLoss]):
    """Takes loss and gradient from the logits of the trainer's own forwards, in the first steps and the oracle's."""

    def start(self, session: Session) -> None:
        last = session.run.training.max_steps
        self._steps = {*range(PROBED_STEPS), *(step % last for step in session.run.probes.oracle_steps)}
        self._logits: OwnLogits | None = None
        self._repeated = -1 if session.run.uses_dropout or session.run.training.offload == "parameters" else REPEATED

    def step_begin(self, session: Session, step: int, window: Sequence[Batch]) -> None:
        if step in self._steps and window:  # of a loop that is not ours the rows are not known yet
            self._logits = OwnLogits(session.model, unpadded(window), self.hooks, gradients=True)
            self._call = FirstCall(session.model, self.hooks)
            self._states: list[str] = []
            if session.run.uses_dropout:
                self.hooks.before(session.model.get_decoder(), partial(self._drawing, session))

    def _drawing(self, session: Session, *_: object) -> None:
        """Note the random state before a forward pass of the training's own."""
        if torch.is_grad_enabled():
            self._states.append(random_digest(session.device))

    def backward_end(self, session: Session, step: int) -> None:
        if self._logits is None:
            return
        logits, self._logits = self._logits, None
        logits.close()
        scale = session.scaler.get_scale() if session.scaler else 1.0
        scale *= session.exchange.count  # the mean over ranks divides by it
        seen = OwnLoss(
            step=step,
            loss=logits.loss_of(session.exchange),
            gradient_error=logits.gradient_error(scale),
            gradient_noise=logits.gradient_noise,
            foreign_rows=logits.foreign_rows,
            random_states=tuple(self._states),
            model_repeats=self._call.repeats(session.model) if step == self._repeated else None,
        )
        self.emit(seen)
