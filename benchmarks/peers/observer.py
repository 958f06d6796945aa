"""The moments of a script's training, as a user would put lines there: in a Trainer by a callback, in a loop around the
optimizer. An adapter overrides those that its peer's documentation uses. Imports torch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from transformers import TrainerCallback

from benchmarks.peers.scenarios import Scenario
from benchmarks.scripts.script import train


class Observer:
    """What is called as a script trains. What the peer says goes to `said`."""

    callbacks: tuple[TrainerCallback, ...] = ()
    """Given to a Trainer, where the peer has callbacks."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.losses: list[float] = []
        """Of every step, as a Trainer logs it or a loop calls backward on it."""
        self.log: list[dict[str, Any]] = []
        """What a Trainer logged."""
        self.model: Any = None

    def batch(self, batch: dict[str, torch.Tensor]) -> None:
        """The collator has made a batch."""

    def started(self, model: Any, optimizer: Any) -> None:
        """Model and optimizer are made."""

    def gradients(self, step: int, model: Any, optimizer: Any) -> None:
        """The optimizer is about to step."""

    def stepped(self, step: int) -> None:
        """The optimizer has stepped, and the gradients are still there."""

    def ended(self) -> None:
        """The training is over."""

    def train(self, scenario: Scenario, folder: Path) -> list[str]:
        """Train the script and return what was said, an error that ended it too."""
        script = scenario.script()
        collate = script.collate

        def collated(tokenizer: Any, rows: Any) -> dict[str, torch.Tensor]:
            batch = collate(tokenizer, rows)
            self.batch(batch)
            return batch

        script.collate = collated
        try:
            train(script, folder, self._trainer, lambda model, tokenizer: self._loop(model))
        except Exception as error:
            self.said.append(f"the training ended with {type(error).__name__}: {error}")
        self.ended()
        return self.said

    @contextmanager
    def _trainer(self, trainer: Any) -> Iterator[None]:
        for callback in (*self.callbacks, _Relay(self)):
            trainer.add_callback(callback)
        yield

    @contextmanager
    def _loop(self, model: Any) -> Iterator[None]:
        self.model, steps = model, itertools.count()
        made: Any = torch.optim.Optimizer.__init__
        backward: Any = torch.Tensor.backward
        last: dict[str, Any] = {}

        def initialised(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            made(optimizer, *args, **kwargs)
            last["optimizer"] = optimizer

        def called(loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            last["loss"] = float(loss.detach())
            backward(loss, *args, **kwargs)

        def before(optimizer: Any, *_: Any) -> None:
            last["step"] = next(steps)
            self.losses.append(last.pop("loss", float("nan")))
            self.gradients(last["step"], model, optimizer)

        def first_forward(*_: Any) -> None:
            if (optimizer := last.pop("optimizer", None)) is not None:
                self.started(model, optimizer)

        hooks = [
            model.register_forward_pre_hook(first_forward),
            register_optimizer_step_pre_hook(before),
            register_optimizer_step_post_hook(lambda *_: self.stepped(last["step"])),
        ]
        try:
            with (
                mock.patch.object(torch.optim.Optimizer, "__init__", initialised),
                mock.patch.object(torch.Tensor, "backward", called),
            ):
                yield
        finally:
            for hook in hooks:
                hook.remove()


class _Relay(TrainerCallback):
    """Tells an observer a Trainer's moments."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.observer.model = kwargs["model"]
        self.observer.started(kwargs["model"], kwargs["optimizer"])

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.observer.gradients(state.global_step, kwargs["model"], kwargs["optimizer"])

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.observer.stepped(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        logs = kwargs["logs"]
        self.observer.log.append({**logs, "step": state.global_step})
        if "loss" in logs:
            self.observer.losses.append(float(logs["loss"]))
