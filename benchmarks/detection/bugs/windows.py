"""The micro-batches of a window, of one process and of two: their weights and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.detection.bugs.bug import bug

if TYPE_CHECKING:
    from tunecheck.training.session import Session

unseen = partial(bug, cohort="unseen-fourth", source="thought up, not from a thread")
TWO = ("parallel.processes=2",)


def _each_loss(session: Session, change: Callable[[Any, Any, int, int, int, int], Any]) -> None:
    """Replace each training loss by `change(loss, batch, window's tokens, step, number, count)`, numbered from 0."""
    from tunecheck.training import native

    loop: Any = native
    forward, window = native.forward, session.batches.window
    now: dict[str, Any] = {"window": [], "step": -1}

    def noted(step: int) -> Any:
        now["window"], now["step"] = window(step), step
        return now["window"]

    def changed(session: Session, batch: Any, tokens: int) -> Any:
        loss = forward(session, batch, tokens)
        places = [number for number, own in enumerate(now["window"]) if own is batch]
        return change(loss, batch, tokens, now["step"], places[0], len(now["window"])) if places else loss

    session.batches.window = noted  # type: ignore[method-assign]
    loop.forward = changed


@unseen(
    "Z12",
    "Ranks average what they should sum",
    caught_by=("accumulation_oracle", "loss_oracle", "gradient_norm_reported"),
    settings=TWO,
    must_say="The gradient is half of what the rows of all ranks give.",
)
def ranks_average(session: Session) -> None:
    """Divide each rank's share of the mean by the number of ranks, as DDP does already."""
    _each_loss(session, lambda loss, *_: loss.detach() + (loss - loss.detach()) / session.ranks.count)


@unseen(
    "Z14",
    "The first micro-batch goes backward twice",
    caught_by="accumulation_oracle",
    must_say="The window's gradient is not the sum of its rows' gradients.",
)
def first_counts_twice(session: Session) -> None:
    """Double the gradient of each window's first micro-batch; its loss is reported once."""
    _each_loss(session, lambda loss, batch, tokens, step, number, n: loss if number else 2 * loss - loss.detach())


@unseen(
    "Z34",
    "The last micro-batch of a window has a mean of its own",
    caught_by=("loss_oracle", "accumulation_oracle"),
    must_say="The window's loss is not the mean over its supervised tokens.",
)
def last_has_its_own_mean(session: Session) -> None:
    """Divide the last micro-batch's loss by its own tokens and the number of micro-batches."""

    def own(loss: Any, batch: Any, tokens: int, step: int, number: int, count: int) -> Any:
        return loss * tokens / (batch.supervised_tokens * count) if number == count - 1 else loss

    _each_loss(session, own)


@unseen(
    "Z38",
    "Each rank divides by its own tokens",
    caught_by=("accumulation_oracle", "loss_oracle"),
    settings=TWO,
    must_say="The gradient or the loss is not the mean over the supervised tokens of all ranks.",
)
def own_tokens(session: Session) -> None:
    """Normalise each rank's gradient by its own supervised tokens; the reported loss stays the global mean."""

    rows = session.batches.window

    def own(loss: Any, batch: Any, tokens: int, step: int, number: int, count: int) -> Any:
        ranks = session.ranks
        mine = sum(each.supervised_tokens for each in ranks.share(rows(step)))
        return loss.detach() + (loss - loss.detach()) * tokens / (mine * ranks.count)

    _each_loss(session, own)


@unseen(
    "Z50",
    "In the sixth step the first micro-batch's gradient is lost",
    caught_by=(
        "accumulation_oracle",
        "calls_in_order",
        "gradients_cleared",
        "gradient_matches_loss",
        "weight_gradients",
    ),
    must_say="In step 5 the gradient is not that of the whole window.",
)
def lost_once(session: Session) -> None:
    """Clear the gradients after the first backward pass of one step, when a log is written."""

    def lost(loss: Any, batch: Any, tokens: int, step: int, number: int, count: int) -> Any:
        return loss * 0 + loss.detach() if step == 5 and number == 0 else loss

    _each_loss(session, lost)
