"""What is learned from a row: labels, their mask, the order of rows, terms beside the likelihood."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.detection.bugs.bug import bug

if TYPE_CHECKING:
    from tunecheck.training.session import Session

unseen = partial(bug, cohort="unseen-fourth", source="thought up, not from a thread")
Columns = dict[str, list[list[int]]]


def _collated(session: Session, change: Callable[[Columns, Sequence[Any]], None]) -> None:
    """Have `change` alter the columns of every micro-batch, in place, given its rows."""
    collate = session.batches.collate

    def changed(examples: Sequence[Any], pad_token_id: int) -> Columns:
        columns = collate(examples, pad_token_id)
        change(columns, examples)
        return columns

    session.batches.collate = changed


@unseen(
    "Z04",
    "Every position is asked for the token after the next",
    caught_by=("loss_oracle", "evaluation_oracle"),
    must_say="The loss is not that of the next token.",
)
def two_ahead(session: Session) -> None:
    """Shift labels that are shifted: in the loss of training and evaluation."""
    plain = session.loss
    session.loss = lambda logits, labels, tokens: plain(logits[:, :-1], labels[:, 1:], tokens)


@unseen(
    "Z05",
    "The prompt is learned and the answer is not",
    caught_by=("tokens_match_template", "labels_as_configured"),
    must_say="What is supervised is not the answer.",
)
def inverted_mask(session: Session) -> None:
    """Negate the mask of supervised tokens."""

    def inverted(columns: Columns, examples: Sequence[Any]) -> None:
        for labels, ids, mask in zip(columns["labels"], columns["input_ids"], columns["attention_mask"], strict=True):
            labels[:] = [t if m and w == -100 else -100 for w, t, m in zip(labels, ids, mask, strict=True)]

    _collated(session, inverted)


@unseen(
    "Z35",
    "Every epoch comes in the order of the first",
    caught_by="row_order",
    settings=("data.train_rows=6",),
    must_say="A later window holds other rows than seed and step prescribe.",
)
def one_order_for_all_epochs(session: Session) -> None:
    """Shuffle once, and repeat that order in each epoch."""
    from tunecheck.training import data

    order = data.order
    data.order = lambda rows, seed, epoch: order(rows, seed, 0)  # type: ignore[assignment]


@unseen(
    "Z36",
    "The longest row of a batch does not learn to end",
    caught_by=("tokens_match_template", "supervised_tokens", "answers_end"),
    must_say="A row's end token is not supervised.",
)
def longest_never_ends(session: Session) -> None:
    """Mask the last label of each row that needs no padding."""

    def endless(columns: Columns, examples: Sequence[Any]) -> None:
        for labels in columns["labels"]:
            if labels[-1] != -100:
                labels[-1] = -100

    _collated(session, endless)


@unseen(
    "Z37",
    "One padding token of each short row is attended to",
    caught_by=("mask_and_positions", "rows_isolated", "tokens_match_template"),
    must_say="The mask lets padding in.",
)
def mask_too_long(session: Session) -> None:
    """Set the mask of the first padding token, as an end that is counted inclusively does."""

    def longer(columns: Columns, examples: Sequence[Any]) -> None:
        for mask in columns["attention_mask"]:
            if 0 in mask:
                mask[mask.index(0)] = 1

    _collated(session, longer)


@unseen(
    "Z43",
    "The loss has a z-term",
    caught_by=("loss_oracle", "evaluation_oracle"),
    must_say="The loss is more than the mean over the supervised tokens.",
)
def z_loss(session: Session) -> None:
    """Add 1e-4 times the squared log of the partition function to each supervised token's loss."""
    plain = session.loss

    def with_z(logits: Any, labels: Any, tokens: int) -> Any:
        z = logits[:, :-1].float().logsumexp(-1)
        return plain(logits, labels, tokens) + 1e-4 * (z[labels[:, 1:] != -100] ** 2).sum() / tokens

    session.loss = with_z


@unseen(
    "Z44",
    "Gradients are those of smoothed labels",
    caught_by=("gradient_matches_loss", "accumulation_oracle"),
    must_say="The gradient is not that of the loss that is reported.",
)
def smoothed_gradients(session: Session) -> None:
    """Smooth the labels by 1 % for the backward pass alone, as a fused loss that reports the plain value does."""
    import torch.nn.functional as F

    plain = session.loss

    def smoothed(logits: Any, labels: Any, tokens: int) -> Any:
        flat, wanted = logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten()
        smooth = F.cross_entropy(flat, wanted, ignore_index=-100, reduction="sum", label_smoothing=0.01) / tokens
        return plain(logits, labels, tokens).detach() + smooth - smooth.detach()

    session.loss = smoothed
