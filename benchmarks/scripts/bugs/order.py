"""Mistakes in the order of a step: calls that no other check sees where the optimizer has no closed form here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_
from transformers import Trainer, TrainerCallback

from benchmarks.scripts.bugs.mistake import mistake
from benchmarks.scripts.script import Script


class Step:
    """What a loop does in one step, each part once and in its usual order."""

    def __init__(self, script: Script, model: Any) -> None:
        self.model, learning = model, [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(learning, lr=0.1, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1 - step / script.steps)
        self.scaler: Any = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def backward(self, batch: dict[str, torch.Tensor], scale: bool = False) -> None:
        """Differentiate the loss of a batch."""
        loss = self.model(**batch).loss
        (self.scaler.scale(loss) if scale else loss).backward()

    def clip(self) -> None:
        """Clip the gradients to a length that they have not."""
        clip_grad_norm_(self.model.parameters(), 0.01)


def loop(step: Callable[[Step, list[dict[str, torch.Tensor]]], None]) -> Callable[[Script], None]:
    """Return a change of the script: a loop of such steps, each of them with two batches."""

    def run(script: Script, model: Any, batches: list[dict[str, torch.Tensor]]) -> None:
        parts = Step(script, model)
        model.train()
        for number in range(script.steps):
            step(parts, batches[2 * number : 2 * number + 2])

    return lambda script: setattr(script, "loop", run)


@mistake("calls_in_order")
def loop_cleared_before_step(script: Script) -> None:
    """zero_grad stands between backward and step, so that nothing is learned."""

    def step(parts: Step, batches: list[Any]) -> None:
        parts.backward(batches[0])
        parts.optimizer.zero_grad()
        parts.optimizer.step()

    loop(step)(script)


@mistake("calls_in_order")
def loop_cleared_to_zero_between(script: Script) -> None:
    """Each micro-batch clears, to zeros, what the one before has added."""

    def step(parts: Step, batches: list[Any]) -> None:
        for batch in batches:
            parts.optimizer.zero_grad(set_to_none=False)
            parts.backward(batch)
        parts.optimizer.step()
        parts.optimizer.zero_grad(set_to_none=False)

    loop(step)(script)


@mistake("calls_in_order")
def loop_steps_twice(script: Script) -> None:
    """The optimizer is stepped by the loop and by a helper."""

    def step(parts: Step, batches: list[Any]) -> None:
        parts.backward(batches[0])
        parts.optimizer.step()
        parts.optimizer.step()
        parts.optimizer.zero_grad()

    loop(step)(script)


@mistake("calls_in_order")
def loop_clips_after_step(script: Script) -> None:
    """Gradients are clipped when they have been used."""

    def step(parts: Step, batches: list[Any]) -> None:
        parts.backward(batches[0])
        parts.optimizer.step()
        parts.clip()
        parts.optimizer.zero_grad()

    loop(step)(script)


@mistake("calls_in_order")
def loop_never_clears_sgd(script: Script) -> None:
    """Nobody clears the gradients."""

    def step(parts: Step, batches: list[Any]) -> None:
        parts.backward(batches[0])
        parts.optimizer.step()

    loop(step)(script)


@mistake("calls_in_order")
def loop_schedule_first(script: Script) -> None:
    """The schedule is stepped before the optimizer."""

    def step(parts: Step, batches: list[Any]) -> None:
        parts.backward(batches[0])
        parts.schedule.step()
        parts.optimizer.step()
        parts.optimizer.zero_grad()

    loop(step)(script)


@mistake("calls_in_order")
def loop_clips_scaled(script: Script) -> None:
    """Gradients are clipped while they are a thousand times too long."""

    def step(parts: Step, batches: list[Any]) -> None:
        parts.backward(batches[0], scale=True)
        parts.clip()
        parts.scaler.step(parts.optimizer)
        parts.scaler.update()
        parts.optimizer.zero_grad()

    loop(step)(script)


@mistake("calls_in_order")
def loop_leaves_out_scaler(script: Script) -> None:
    """The loss is scaled, and the optimizer stepped without the scaler."""

    def step(parts: Step, batches: list[Any]) -> None:
        parts.backward(batches[0], scale=True)
        parts.optimizer.step()
        parts.optimizer.zero_grad()

    loop(step)(script)


@mistake("calls_in_order")
def micro_batches_cleared(script: Script) -> None:
    """training_step clears the gradients of the micro-batch before."""

    class Clearing(Trainer):
        def training_step(self, model: Any, *args: Any, **kwargs: Any) -> Any:
            model.zero_grad()
            return super().training_step(model, *args, **kwargs)

    script.trainer = Clearing


@mistake("calls_in_order")
def stepped_by_a_callback(script: Script) -> None:
    """A callback steps the optimizer, which the Trainer does already."""

    def on_optimizer_step(self: Any, *args: Any, optimizer: Any = None, **kwargs: Any) -> None:
        optimizer.step()

    kind = type("Stepping", (TrainerCallback,), {"on_optimizer_step": on_optimizer_step})
    script.arguments["optim"] = "sgd"
    script.built.append(lambda trainer: trainer.add_callback(kind()))


def healthy_scaled(parts: Step, batches: list[Any]) -> None:
    """Accumulate two scaled micro-batches, and do all in its order."""
    for batch in batches:
        parts.backward(batch, scale=True)
    parts.scaler.unscale_(parts.optimizer)
    parts.clip()
    parts.scaler.step(parts.optimizer)
    parts.scaler.update()
    parts.schedule.step()
    parts.optimizer.zero_grad()
