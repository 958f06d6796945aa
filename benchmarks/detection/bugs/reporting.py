"""Logged numbers that are not those of the training."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from benchmarks.detection.bugs.bug import bug
from benchmarks.detection.bugs.parts import change_window
from tunecheck.training.data import IGNORED

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from tunecheck.training import native
    from tunecheck.training.session import Session


@bug("X16", "The reported loss scaled", caught_by="loss_oracle")
def scaled_reports(session: Session) -> None:
    """Multiply the reported loss by the accumulation steps; the gradient is right."""
    from tunecheck.training import native

    finish, windows = native.PendingSteps.finish, session.run.training.gradient_accumulation_steps

    def scaled(self: Any, **numbers: Any) -> None:
        finish(self, **{**numbers, "loss": numbers["loss"] * windows})

    native.PendingSteps.finish = scaled  # type: ignore[method-assign]


@bug("X47", "The rate reported is not the one used", caught_by="updates_match_adamw")
def rate_reported_not_used(session: Session) -> None:
    """Step with half of the learning rate that the optimizer reports."""
    step, groups = session.optimizer.step, session.optimizer.param_groups

    def halved(*args: Any, **kwargs: Any) -> Any:
        shown = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] /= 2
        result = step(*args, **kwargs)
        for group, rate in zip(groups, shown, strict=True):
            group["lr"] = rate
        return result

    session.optimizer.step = halved


@bug("X103", "Padding counted as tokens", caught_by="supervised_tokens")
def padding_in_the_throughput(session: Session) -> None:
    """Count padding in the throughput."""

    def counted(step: int, window: Any) -> Any:
        return [dataclasses.replace(batch, tokens=batch.input_ids.numel()) for batch in window(step)]

    change_window(session, counted)


def _windows(session: Session) -> int:
    """Return the micro-batches per optimizer step."""
    return session.run.training.gradient_accumulation_steps


@bug(
    "U02",
    "Only the last micro-batch's loss is reported",
    caught_by="loss_oracle",
    source="thought up, not from a thread",
    cohort="unseen",
)
def last_micro_batch_reported(session: Session) -> None:
    """Log the last micro-batch's loss, scaled up, as the step's; gradients are right."""
    from tunecheck.training import native

    inner, finish, last = session.loss, native.PendingSteps.finish, [0.0]

    def loss(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        value = inner(logits, labels, supervised_tokens)
        last[0] = float(value.detach()) * _windows(session)
        return value

    def report(self: Any, **numbers: Any) -> None:
        finish(self, **{**numbers, "loss": numbers["loss"] * 0 + last[0]})

    session.loss = loss
    native.PendingSteps.finish = report  # type: ignore[method-assign]


def _change_report(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change a step's numbers by this function before they are logged."""
    from tunecheck.training import native

    finish = native.PendingSteps.finish

    def changed(self: native.PendingSteps, **numbers: Any) -> None:
        finish(self, **change(numbers))

    native.PendingSteps.finish = changed  # type: ignore[method-assign]


@bug(
    "V38",
    "The learning rate logged is the next step's",
    caught_by="learning_rate_trace",
    cohort="blind",
    must_say="The logged learning rate of a step is not the one that the schedule gives for it or that it used.",
)
def learning_rate_of_next_step(session: Session) -> None:
    """Log the learning rate after the scheduler's step: the next step's."""
    _change_report(lambda numbers: numbers | {"learning_rate": float(session.scheduler.get_last_lr()[0])})


@bug(
    "V39",
    "The loss logged is a running mean",
    caught_by="loss_oracle",
    cohort="blind",
    must_say="The logged loss of a step is not the loss of its window.",
)
def smoothed_loss(session: Session) -> None:
    """Log a running mean of the loss with a momentum of 0.9."""
    last: list[Any] = []

    def smooth(numbers: dict[str, Any]) -> dict[str, Any]:
        last[:] = [0.9 * last[0] + 0.1 * numbers["loss"] if last else numbers["loss"]]
        return numbers | {"loss": last[0]}

    _change_report(smooth)


@bug(
    "V40",
    "The tokens logged include the padding",
    caught_by="supervised_tokens",
    cohort="blind",
    must_say=(
        "The logged number of tokens of a step, and so tokens per second, is not that of its rows without padding."
    ),
)
def padding_in_the_logged_tokens(session: Session) -> None:
    """Count padding in the logged tokens, and so in the throughput."""
    places: list[int] = []

    def remember(step: int, window: Callable[[int], Any]) -> Any:
        batches = window(step)
        places[:] = [batch.input_ids.numel() for batch in batches]
        return batches

    change_window(session, remember)
    _change_report(lambda numbers: numbers | {"tokens": sum(places)})


@bug(
    "V79",
    "The supervised tokens reported are the last micro-batch's",
    caught_by="supervised_tokens",
    source="axolotl-ai-cloud/axolotl#3688",
    cohort="blind-second",
    must_say="The reported number of supervised tokens of a step is not that of its window.",
)
def last_micro_batch_counted(session: Session) -> None:
    """Report the last micro-batch's supervised tokens as the step's."""
    from tunecheck.training import native

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


@bug(
    "V80",
    "A step's time is reported for one micro-batch",
    caught_by="seconds_reported",
    source="karpathy/nanochat#177",
    cohort="blind-second",
    must_say="The reported time of a step is not the time it took, or tokens per second are too high.",
)
def seconds_of_a_micro_batch(session: Session) -> None:
    """Report the seconds of one micro-batch as the step's: tokens per second are as many times too high."""
    from tunecheck.training import native, tensors

    between, parts = tensors.seconds_between, session.run.training.gradient_accumulation_steps

    def changed(begin: Any, end: Any) -> float:
        return between(begin, end) / parts

    native.seconds_between = changed  # type: ignore[attr-defined]
