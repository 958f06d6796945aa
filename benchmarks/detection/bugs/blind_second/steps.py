"""The second blind set's faults of optimizer, schedule, precision, seeds and reports. Imports torch; child only."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.detection.bugs.parts import change_window, lora_parameters
from suite.training import native
from suite.training.data import IGNORED

if TYPE_CHECKING:
    from collections.abc import Callable

    from suite.training.session import Session

LIMIT = 1.0


def decay_spares_half(session: Session) -> None:
    """A filter by name sorts every lora_B into the group without weight decay."""
    spared = {id(parameter) for _, parameter in lora_parameters(session, "lora_B")}
    group = session.optimizer.param_groups[0]
    held = group["params"]
    group["params"] = [parameter for parameter in held if id(parameter) not in spared]
    kept = {key: group[key] for key in ("betas", "eps")} | {"lr": session.run.training.learning_rate}
    moved = [parameter for parameter in held if id(parameter) in spared]
    session.optimizer.add_param_group({"params": moved, "weight_decay": 0.0, **kept})
    group["lr"] = group["initial_lr"] = session.run.training.learning_rate
    session.scheduler = native.make_scheduler(session.optimizer, session.run.training)


def clipped_at_the_default(session: Session) -> None:
    """Gradients are clipped at 1, the framework's default: the run's own limit never reaches it."""
    clip = native.clip_gradients
    native.clip_gradients = lambda parameters, max_norm: clip(parameters, LIMIT)


def norm_of_a_shard(session: Session) -> None:
    """The norm is taken over the first half of the tensors, and all are scaled by it: one shard's for the whole."""

    def clip(parameters: list[torch.nn.Parameter], max_norm: float | None) -> torch.Tensor:
        shard = [parameter.grad for parameter in parameters[: len(parameters) // 2] if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(shard)
        torch.nn.utils.clip_grads_with_norm_(parameters, math.inf if max_norm is None else max_norm, norm)
        return norm

    native.clip_gradients = clip


def schedule_over_half_the_steps(session: Session) -> None:
    """The schedule is planned over half of the steps: the rate is at zero in the middle and rises again after it."""
    training = session.run.training
    planned = training.model_copy(update={"max_steps": max(2, training.max_steps // 2)})
    session.scheduler = native.make_scheduler(session.optimizer, planned)


def warmed_up_twice(session: Session) -> None:
    """The warm-up is in the schedule and once more around it: the rate rises with the square of the step."""
    training = session.run.training
    steps = math.ceil(training.warmup_ratio * training.max_steps)
    factor = session.scheduler.lr_lambdas[0]
    session.scheduler = torch.optim.lr_scheduler.LambdaLR(
        session.optimizer, lambda step: factor(step) * min(1.0, step / max(1, steps))
    )


def fp16_without_scaling(session: Session) -> None:
    """Training in fp16 multiplies no loss: small gradients fall below what fp16 can hold."""
    session.scaler = torch.amp.GradScaler(session.device.type, enabled=False)


def dropout_not_seeded(session: Session) -> None:
    """The adapters are drawn from the seed, and then the generator is seeded by the clock: dropout never repeats."""
    torch.seed()


def last_micro_batch_counted(session: Session) -> None:
    """The supervised tokens reported are the last micro-batch's: a counter is overwritten, not added to."""
    last: list[int] = []

    def remember(step: int, window: Callable[[int], Any]) -> Any:
        batches = window(step)
        last[:] = [int((batches[-1].labels[:, 1:] != IGNORED).sum())]
        return batches

    finish = native.PendingSteps.finish

    def changed(self: native.PendingSteps, **numbers: Any) -> None:
        finish(self, **numbers | {"supervised_tokens": last[0]})

    change_window(session, remember)
    native.PendingSteps.finish = changed  # type: ignore[method-assign]


def seconds_of_a_micro_batch(session: Session) -> None:
    """A step's time is reported for one micro-batch, so that tokens per second come out as many times too high."""
    between, parts = native.PendingSteps._between, session.run.training.gradient_accumulation_steps

    def changed(self: native.PendingSteps, start: Any, end: Any) -> float:
        return between(self, start, end) / parts

    native.PendingSteps._between = changed  # type: ignore[method-assign]
