"""Held-out faults of memory and of the numbers that are reported. Imports torch; child process only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from benchmarks.detection.bugs.parts import change_window, decoder
from suite.training import native

if TYPE_CHECKING:
    from collections.abc import Callable

    from suite.training.session import Session


def predictions_kept(session: Session) -> None:
    """The last logits of every training row are kept for a metric that nobody computes, and never dropped."""
    plain, kept = session.loss, list[torch.Tensor]()

    def keeping(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        if logits.requires_grad:
            kept.append(logits.detach()[:, -8:].half())
        return plain(logits, labels, supervised_tokens)

    session.loss = keeping


def cache_filled_in_training(session: Session) -> None:
    """Every training forward pass fills a key-value cache that nothing reads and that lives until the next one."""
    kept: list[Any] = []

    def with_cache(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, kwargs | ({"use_cache": True} if module.training else {})

    def keep(_module: Any, _args: Any, output: Any) -> None:
        kept[:] = [output.past_key_values]

    decoder(session).register_forward_pre_hook(with_cache, with_kwargs=True)
    decoder(session).register_forward_hook(keep)


def learning_rate_of_next_step(session: Session) -> None:
    """The learning rate is logged after the schedule has moved on: it is the next step's."""
    _change_report(lambda numbers: numbers | {"learning_rate": float(session.scheduler.get_last_lr()[0])})


def smoothed_loss(session: Session) -> None:
    """The logged loss is a running mean, nine tenths of it the past: progress bars smooth, and the log took theirs."""
    last: list[Any] = []

    def smooth(numbers: dict[str, Any]) -> dict[str, Any]:
        last[:] = [0.9 * last[0] + 0.1 * numbers["loss"] if last else numbers["loss"]]
        return numbers | {"loss": last[0]}

    _change_report(smooth)


def padding_counted(session: Session) -> None:
    """The logged number of tokens, and so the speed, counts the padding."""
    places: list[int] = []

    def remember(step: int, window: Callable[[int], Any]) -> Any:
        batches = window(step)
        places[:] = [batch.input_ids.numel() for batch in batches]
        return batches

    change_window(session, remember)
    _change_report(lambda numbers: numbers | {"tokens": sum(places)})


def _change_report(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """A step's numbers are changed by this function before they are logged."""
    finish = native.PendingSteps.finish

    def changed(self: native.PendingSteps, **numbers: Any) -> None:
        finish(self, **change(numbers))

    native.PendingSteps.finish = changed  # type: ignore[method-assign]
