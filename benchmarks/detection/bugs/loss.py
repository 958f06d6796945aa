"""Losses that are not the mean negative log-likelihood of the supervised tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks.detection.bugs.bug import bug
from benchmarks.detection.bugs.parts import change_window
from tunecheck.training.data import IGNORED

if TYPE_CHECKING:
    import torch

    from tunecheck.training.session import Session


@bug(
    "B18",
    "Accumulation averages means",
    caught_by=("loss_oracle", "accumulation_oracle"),
    source="huggingface/transformers#34191, karpathy/nanochat#59",
)
def mean_of_means(session: Session) -> None:
    """Average the loss of each micro-batch, then the averages."""
    import torch.nn.functional as F

    windows = session.run.training.gradient_accumulation_steps

    def loss(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten()) / windows

    session.loss = loss


@bug("B23", "Labels not shifted", caught_by="loss_oracle", source="huggingface/transformers#27517")
def no_shift(session: Session) -> None:
    """Compare each position's logits with its own token."""
    import torch.nn.functional as F

    def loss(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        total = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=-100, reduction="sum")
        return total / supervised_tokens

    session.loss = loss


@bug(
    "B28",
    "No label at all, the loss shown as 0",
    caught_by=("tokens_match_template", "supervised_tokens"),
    source="marin-community/marin#7237, huggingface/trl#4201",
)
def nan_shown_as_zero(session: Session) -> None:
    """Mask every label and report the loss 0 / 0 as 0."""
    inner = session.loss
    from benchmarks.detection.bugs.parts import change_columns

    def mask(columns: dict[str, list[list[int]]]) -> None:
        columns["labels"] = [[-100] * len(row) for row in columns["labels"]]

    change_columns(session, mask)
    session.loss = lambda logits, labels, count: inner(logits, labels, max(1, count)).nan_to_num()


@bug("X11", "Means of micro-batches added", caught_by="loss_oracle")
def not_divided_by_the_windows(session: Session) -> None:
    """Average the loss of each micro-batch and add the averages."""
    import torch.nn.functional as F

    def loss(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())

    session.loss = loss


@bug("X12", "The loss divided by all tokens", caught_by="loss_oracle")
def divided_by_all_tokens(session: Session) -> None:
    """Divide the summed loss by all tokens, prompts and padding included."""
    inner = session.loss

    def loss(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        windows = session.run.training.gradient_accumulation_steps
        return inner(logits, labels, labels.numel() * windows if supervised_tokens > 1 else 1)

    session.loss = loss


@bug("X13", "The loss shifts by two", caught_by="loss_oracle")
def shifted_by_two(session: Session) -> None:
    """Shift by two in the loss: each position predicts the token after the next."""
    import torch.nn.functional as F

    def loss(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        flat = logits[:, :-2].flatten(0, 1).float()
        total = F.cross_entropy(flat, labels[:, 2:].flatten(), ignore_index=-100, reduction="sum")
        return total / supervised_tokens

    session.loss = loss


@bug("X14", "Labels smoothed", caught_by="loss_oracle")
def smoothed_labels(session: Session) -> None:
    """Smooth the labels by 0.1."""
    import torch.nn.functional as F

    def loss(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        flat, wanted = logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten()
        total = F.cross_entropy(flat, wanted, ignore_index=-100, reduction="sum", label_smoothing=0.1)
        return total / supervised_tokens

    session.loss = loss


@bug("X15", "The loss computed in bf16", caught_by="accumulation_oracle")
def computed_in_bf16(session: Session) -> None:
    """Take softmax and sum in bf16."""
    import torch.nn.functional as F

    def loss(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        flat, wanted = logits[:, :-1].flatten(0, 1).bfloat16(), labels[:, 1:].flatten()
        return F.cross_entropy(flat, wanted, ignore_index=-100, reduction="sum") / supervised_tokens

    session.loss = loss


@bug("X17", "A micro-batch adds nothing", caught_by=("loss_oracle", "accumulation_oracle"))
def one_micro_batch_lost(session: Session) -> None:
    """Multiply the last micro-batch of each window by zero: it adds neither loss nor gradient."""
    inner, calls = session.loss, [0]

    def loss(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        value = inner(logits, labels, supervised_tokens)
        calls[0] += logits.requires_grad
        last = calls[0] % session.run.training.gradient_accumulation_steps == 0
        return value * 0 if logits.requires_grad and last else value

    session.loss = loss


@bug("X102", "Means added in the last window", caught_by=("loss_oracle", "accumulation_oracle"))
def last_window_not_divided(session: Session) -> None:
    """Average each micro-batch of the last window by itself and add the averages."""
    inner, calls = session.loss, [0]
    windows = session.run.training.gradient_accumulation_steps
    first = (session.run.training.max_steps - 1) * windows

    def loss(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        calls[0] += logits.requires_grad and supervised_tokens > 1
        in_last = logits.requires_grad and calls[0] > first
        return inner(logits, labels, int((labels[:, 1:] != -100).sum()) if in_last else supervised_tokens)

    session.loss = loss


@bug("X135", "A z-loss in the gradient alone", caught_by="accumulation_oracle")
def z_loss_in_the_gradient(session: Session) -> None:
    """Add a z-loss to the gradient alone; the loss that the fused kernel returns is without it."""
    import torch

    inner = session.loss

    def loss(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        value = inner(logits, labels, supervised_tokens)
        squares = torch.logsumexp(logits[:, :-1].float(), -1).square() * (labels[:, 1:] != -100)
        extra = 1e-3 * squares.sum() / supervised_tokens
        return value + (extra - extra.detach())

    session.loss = loss


def _windows(session: Session) -> int:
    """Return the micro-batches per optimizer step."""
    return session.run.training.gradient_accumulation_steps


@bug(
    "U01",
    "The last window is averaged twice",
    caught_by=("loss_oracle", "accumulation_oracle"),
    source="thought up, not from a thread",
    cohort="unseen",
)
def last_window_averaged_twice(session: Session) -> None:
    """Divide the loss of the last optimizer step by the accumulation steps once more."""
    inner, calls = session.loss, [0]
    first = (session.run.training.max_steps - 1) * _windows(session)

    def loss(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        value = inner(logits, labels, supervised_tokens)
        if not (logits.requires_grad and supervised_tokens > 1):
            return value
        calls[0] += 1
        return value / _windows(session) if calls[0] > first else value

    session.loss = loss


@bug(
    "U04",
    "Every row weighs the same, however long",
    caught_by=("loss_oracle", "accumulation_oracle"),
    source="thought up, not from a thread",
    cohort="unseen",
)
def rows_weigh_the_same(session: Session) -> None:
    """Average the rows' mean losses: short answers count for more."""
    import torch.nn.functional as F

    def loss(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        flat, wanted = logits[:, :-1].flatten(0, 1).float(), labels[:, 1:]
        each = F.cross_entropy(flat, wanted.flatten(), ignore_index=IGNORED, reduction="none").view(wanted.shape)
        means = each.sum(1) / (wanted != IGNORED).sum(1).clamp(min=1)
        return means.mean() / (_windows(session) if supervised_tokens > 1 else 1 / labels.shape[0])

    session.loss = loss


@bug(
    "V03",
    "Label smoothing in the training loss that nobody asked for",
    caught_by=("loss_oracle", "accumulation_oracle", "gradient_matches_loss"),
    cohort="blind",
    must_say="The training loss or its gradient is not the plain cross entropy of the supervised tokens.",
)
def label_smoothing(session: Session) -> None:
    """Smooth the labels of the training loss by 0.05; evaluation is unaffected."""
    import torch.nn.functional as F

    plain = session.loss

    def smoothed(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        if supervised_tokens == 1:
            return plain(logits, labels, supervised_tokens)
        shifted, wanted = logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten()
        total = F.cross_entropy(shifted, wanted, ignore_index=IGNORED, reduction="sum", label_smoothing=0.05)
        return total / supervised_tokens

    session.loss = smoothed


@bug(
    "V04",
    "The loss is taken of soft-capped logits",
    caught_by=("loss_oracle", "accumulation_oracle", "evaluation_oracle"),
    cohort="blind",
    must_say="The loss is not the cross entropy of the logits that the model gives.",
)
def soft_capped_logits(session: Session) -> None:
    """Take the loss of 30 tanh(logits / 30), another architecture's soft cap."""
    import torch

    plain = session.loss
    session.loss = lambda logits, labels, tokens: plain(30 * torch.tanh(logits / 30), labels, tokens)


@bug(
    "V05",
    "The window's loss is divided by a count taken from its first micro-batch",
    caught_by=("loss_oracle", "accumulation_oracle", "supervised_tokens"),
    cohort="blind",
    must_say="The loss of an accumulated window is not divided by the supervised tokens of the whole window.",
)
def denominator_of_first_micro_batch(session: Session) -> None:
    """Divide the window's loss by its first micro-batch's supervised tokens times the number of micro-batches."""
    change_window(
        session,
        lambda step, window: [
            replace(batch, supervised_tokens=rows[0].supervised_tokens) for rows in [window(step)] for batch in rows
        ],
    )


@bug(
    "V51",
    "The chunked loss loses the tokens at the chunks' borders",
    caught_by=("loss_oracle", "accumulation_oracle", "supervised_tokens"),
    source="NVIDIA-NeMo/Automodel#3803, meta-pytorch/torchtune#1390",
    cohort="blind-second",
    settings=("training.loss_chunk_tokens=20",),
    must_say="The loss, or its number of supervised tokens, is not that of all of the window's supervised tokens.",
)
def chunks_without_borders(session: Session) -> None:
    """Shift labels inside each chunk of the chunked loss: the tokens at the borders are not predicted."""
    from tunecheck.training import native

    whole = native.chunked_loss

    def changed(session: Session, batch: Any, mask: Any, supervised_tokens: int, chunk_tokens: int) -> torch.Tensor:
        width = max(1, chunk_tokens // len(batch.keys))
        labels = batch.labels.clone()
        labels[:, width::width] = IGNORED
        return whole(session, replace(batch, labels=labels), mask, supervised_tokens, chunk_tokens)

    native.chunked_loss = changed


@bug("W15", "The reported loss is rounded to bf16", caught_by="loss_oracle", cohort="unseen-second")
def reported_in_bf16(session: Session) -> None:
    """Round each micro-batch's reported loss to bf16; its gradient is right."""
    loss = session.loss

    def changed(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        value = loss(logits, labels, supervised_tokens)
        return value + (value.bfloat16().to(value.dtype) - value).detach()

    session.loss = changed


@bug("W16", "End tokens weigh half", caught_by=("loss_oracle", "accumulation_oracle"), cohort="unseen-second")
def end_tokens_weigh_half(session: Session) -> None:
    """Count the end tokens' share of the loss by half."""
    loss, end = session.loss, session.tokenizer.eos_token_id

    def changed(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        others = labels.masked_fill(labels == end, IGNORED)
        return (loss(logits, labels, supervised_tokens) + loss(logits, others, supervised_tokens)) / 2

    session.loss = changed


@bug("W17", "A token's loss is capped", caught_by=("loss_oracle", "accumulation_oracle"), cohort="unseen-second")
def losses_capped(session: Session) -> None:
    """Cap each token's loss at 8 nats, so that the hardest tokens have no gradient."""
    import torch.nn.functional as F

    def changed(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        scores, wanted = logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten()
        losses = F.cross_entropy(scores, wanted, ignore_index=IGNORED, reduction="none")
        return losses.clamp(max=8).sum() / supervised_tokens

    session.loss = changed
