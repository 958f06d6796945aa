"""Held-out faults of gradients, loss and accumulation. Imports torch; child process only."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from benchmarks.detection.bugs.parts import adapted_modules, after_first_evaluation, change_window, layers
from suite.training.data import IGNORED

if TYPE_CHECKING:
    from suite.training.session import Session


def no_gradient_to_input(session: Session) -> None:
    """Every lora_A is given a detached input, so what lies below learns nothing through the adapters above it."""
    for module in adapted_modules(session):
        for linear in module.lora_A.values():
            linear.forward = _on_detached(linear.forward)


def _on_detached(forward: Any) -> Any:
    """The function called with its input cut from the graph."""
    return lambda x: forward(x.detach())


def adapter_off_after_evaluation(session: Session) -> None:
    """The first evaluation switches the last layer's adapters off, as for a reference model, and not on again."""

    def switch_off() -> None:
        for module in layers(session)[-1].modules():
            if isinstance(getattr(module, "scaling", None), dict):
                module._disable_adapters = True

    after_first_evaluation(session, switch_off)


def label_smoothing(session: Session) -> None:
    """The training loss has a label smoothing of 0.05 that nobody asked for; evaluation, whose share is 1, has none."""
    plain = session.loss

    def smoothed(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        if supervised_tokens == 1:
            return plain(logits, labels, supervised_tokens)
        shifted, wanted = logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten()
        total = F.cross_entropy(shifted, wanted, ignore_index=IGNORED, reduction="sum", label_smoothing=0.05)
        return total / supervised_tokens

    session.loss = smoothed


def soft_capped_logits(session: Session) -> None:
    """The loss is taken of 30 tanh(logits / 30), another architecture's cap on its logits."""
    plain = session.loss
    session.loss = lambda logits, labels, tokens: plain(30 * torch.tanh(logits / 30), labels, tokens)


def denominator_of_first_micro_batch(session: Session) -> None:
    """The window's supervised tokens are those of its first micro-batch, times the number of micro-batches."""
    change_window(
        session,
        lambda step, window: [
            replace(batch, supervised_tokens=rows[0].supervised_tokens) for rows in [window(step)] for batch in rows
        ],
    )


def first_micro_batch_repeated(session: Session) -> None:
    """Each window's micro-batches are all the first one: the loader is iterated anew for each of them."""
    change_window(session, lambda step, window: [rows[0] for rows in [window(step)] for _ in rows])
