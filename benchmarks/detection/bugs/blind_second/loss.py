"""The second blind set's faults of loss and accumulation. Imports torch; child process only."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from suite.training import native
from suite.training.data import IGNORED

if TYPE_CHECKING:
    from collections.abc import Callable

    from suite.training.session import Session


def chunks_without_borders(session: Session) -> None:
    """The loss in chunks shifts inside each chunk: the token after a chunk's last one is predicted by nobody."""
    whole = native.chunked_loss

    def changed(session: Session, batch: Any, mask: Any, supervised_tokens: int, chunk_tokens: int) -> torch.Tensor:
        width = max(1, chunk_tokens // len(batch.keys))
        labels = batch.labels.clone()
        labels[:, width::width] = IGNORED
        return whole(session, replace(batch, labels=labels), mask, supervised_tokens, chunk_tokens)

    native.chunked_loss = changed


def gradients_divided_once_more(session: Session) -> None:
    """The loss is the window's share already, and is divided by the accumulation steps once more on its way back; the
    log has the right one."""
    scale, steps = session.scaler.scale, session.run.training.gradient_accumulation_steps
    session.scaler.scale = lambda loss: scale(loss / steps)


class _OwnGradient(torch.autograd.Function):
    """total / tokens, whose gradient is always the total's."""

    @staticmethod
    def forward(ctx: Any, total: torch.Tensor, tokens: int) -> torch.Tensor:
        return total / tokens

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.ones_like(gradient), None


def fused_loss_ignores_what_comes_back(session: Session) -> None:
    """A fused loss computes its gradient in the forward pass and ignores the one it is handed: the value is the mean,
    the gradient the sum's."""
    own: Any = _OwnGradient
    plain = session.loss
    session.loss = lambda logits, labels, tokens: own.apply(plain(logits, labels, 1), tokens)


def short_answers_without_gradient(session: Session) -> None:
    """A fused loss gives no gradient for rows with few supervised tokens; their value is in the loss."""
    plain = session.loss
    counts = sorted(sum(label != IGNORED for label in row.labels) for row in session.batches.train)
    fewest = counts[len(counts) // 3]

    def changed(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        few = (labels != IGNORED).sum(1) < fewest
        return plain(torch.where(few[:, None, None], logits.detach(), logits), labels, supervised_tokens)

    session.loss = changed


def cleared_before_each_micro_batch(session: Session) -> None:
    """Gradients are cleared before every micro-batch's backward pass: the last one alone is trained on."""
    _before_backward(session, lambda: session.optimizer.zero_grad(set_to_none=True))


def clipped_at_each_micro_batch(session: Session) -> None:
    """What has been accumulated is clipped after every micro-batch, so that the first ones count for less."""
    parameters = [parameter for group in session.optimizer.param_groups for parameter in group["params"]]
    _before_backward(session, lambda: native.clip_gradients(parameters, session.run.training.max_grad_norm))


def _before_backward(session: Session, change: Callable[[], Any]) -> None:
    """This is done just before every micro-batch's backward pass."""
    scale = session.scaler.scale

    def changed(loss: torch.Tensor) -> torch.Tensor:
        change()
        scaled: torch.Tensor = scale(loss)
        return scaled

    session.scaler.scale = changed
