"""Losses that are not the mean negative log-likelihood of the supervised tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from suite.training.session import Session


def mean_of_means(session: Session) -> None:
    """Each micro-batch is averaged alone, and then the averages."""
    windows = session.run.training.gradient_accumulation_steps

    def loss(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten()) / windows

    session.loss = loss


def not_divided_by_the_windows(session: Session) -> None:
    """Each micro-batch is averaged alone, and the averages are added."""

    def loss(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())

    session.loss = loss


def divided_by_all_tokens(session: Session) -> None:
    """The sum is divided by all tokens, prompts and padding included."""
    inner = session.loss

    def loss(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        windows = session.run.training.gradient_accumulation_steps
        return inner(logits, labels, labels.numel() * windows if supervised_tokens > 1 else 1)

    session.loss = loss


def no_shift(session: Session) -> None:
    """The loss compares each position with its own token."""

    def loss(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        total = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=-100, reduction="sum")
        return total / supervised_tokens

    session.loss = loss


def shifted_by_two(session: Session) -> None:
    """The loss itself shifts twice: each position predicts the token after the next."""

    def loss(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        flat = logits[:, :-2].flatten(0, 1).float()
        total = F.cross_entropy(flat, labels[:, 2:].flatten(), ignore_index=-100, reduction="sum")
        return total / supervised_tokens

    session.loss = loss


def smoothed_labels(session: Session) -> None:
    """A tenth of every label is spread over the vocabulary."""

    def loss(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        flat, wanted = logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten()
        total = F.cross_entropy(flat, wanted, ignore_index=-100, reduction="sum", label_smoothing=0.1)
        return total / supervised_tokens

    session.loss = loss


def computed_in_bf16(session: Session) -> None:
    """Softmax and sum are taken in bf16."""

    def loss(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        flat, wanted = logits[:, :-1].flatten(0, 1).bfloat16(), labels[:, 1:].flatten()
        return F.cross_entropy(flat, wanted, ignore_index=-100, reduction="sum") / supervised_tokens

    session.loss = loss


def scaled_reports(session: Session) -> None:
    """The reported loss is multiplied by the accumulation steps; the gradient is right."""
    from suite.training import native

    finish, windows = native.PendingSteps.finish, session.run.training.gradient_accumulation_steps

    def scaled(self: Any, **numbers: Any) -> None:
        finish(self, **{**numbers, "loss": numbers["loss"] * windows})

    native.PendingSteps.finish = scaled  # type: ignore[method-assign]


def one_micro_batch_lost(session: Session) -> None:
    """The last micro-batch of each window adds nothing: neither loss nor gradient."""
    inner, calls = session.loss, [0]

    def loss(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        value = inner(logits, labels, supervised_tokens)
        calls[0] += logits.requires_grad
        last = calls[0] % session.run.training.gradient_accumulation_steps == 0
        return value * 0 if logits.requires_grad and last else value

    session.loss = loss


def nan_shown_as_zero(session: Session) -> None:
    """Every label is masked, and the division 0 / 0 is reported as 0."""
    inner = session.loss
    from benchmarks.detection.bugs.parts import change_columns

    def mask(columns: dict[str, list[list[int]]]) -> None:
        columns["labels"] = [[-100] * len(row) for row in columns["labels"]]

    change_columns(session, mask)
    session.loss = lambda logits, labels, count: inner(logits, labels, max(1, count)).nan_to_num()


def last_window_not_divided(session: Session) -> None:
    """In the last optimizer step each micro-batch's loss is its own mean, and these are added."""
    inner, calls = session.loss, [0]
    windows = session.run.training.gradient_accumulation_steps
    first = (session.run.training.max_steps - 1) * windows

    def loss(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        calls[0] += logits.requires_grad and supervised_tokens > 1
        in_last = logits.requires_grad and calls[0] > first
        return inner(logits, labels, int((labels[:, 1:] != -100).sum()) if in_last else supervised_tokens)

    session.loss = loss


def z_loss_in_the_gradient(session: Session) -> None:
    """A fused kernel adds a z-loss to the gradient that nobody asked for; the loss that it returns is without it."""
    inner = session.loss

    def loss(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        value = inner(logits, labels, supervised_tokens)
        squares = torch.logsumexp(logits[:, :-1].float(), -1).square() * (labels[:, 1:] != -100)
        extra = 1e-3 * squares.sum() / supervised_tokens
        return value + (extra - extra.detach())

    session.loss = loss
