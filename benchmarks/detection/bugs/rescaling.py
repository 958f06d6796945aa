"""A checkpoint that another number of processes goes on from: what is counted, cut or scaled by that number.

Every bug is injected on each rank of each attempt; where the same number goes on, none of them changes anything.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.detection.bugs.bug import bug
from benchmarks.detection.bugs.parallel import TWO
from benchmarks.detection.bugs.parts import change_window
from benchmarks.detection.bugs.sharding import SHARDED

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from tunecheck.training.session import Session

TO_ONE = ("probes.resume_from=3", "probes.rescale_to=[1]")
SAVED_BY = "processes"
"""File beside the checkpoint."""

rescaling_bug = partial(bug, caught_by="rescale_equals", cohort="parallel", settings=(*TWO, *TO_ONE))


@rescaling_bug("D41", "The position in the data is that of one process")
def position_per_process(session: Session) -> None:
    """Go on after the rows that one process had seen, times the processes of now."""

    def change(start: int, before: int) -> None:
        there = start * session.ranks.count // before
        change_window(session, lambda step, window: window(step - start + there))

    _when_rescaled(session, change)


@rescaling_bug("D42", "The epoch begins anew", source="NVIDIA-BioNeMo/bionemo-recipes#1250")
def epoch_restarted(session: Session) -> None:
    """Drop the position in the data."""
    _when_rescaled(session, lambda start, before: change_window(session, lambda step, window: window(step - start)))


@rescaling_bug("D43", "The optimizer's state is dropped", source="allenai/OLMo#641")
def optimizer_state_dropped(session: Session) -> None:
    """Begin with empty averages, since those in the file are cut for another number."""
    _when_rescaled(session, lambda start, before: session.optimizer.state.clear())


@rescaling_bug(
    "D44",
    "Shards of the optimizer's state are joined in another order",
    settings=(*SHARDED, *TO_ONE),
    source="Lightning-AI/pytorch-lightning#16815",
)
def shards_in_another_order(session: Session) -> None:
    """Put the last rank's rows first."""
    import torch

    def change(start: int, before: int) -> None:
        for held in session.optimizer.state.values():
            held |= {key: torch.cat(value.chunk(before)[::-1]) for key, value in held.items() if value.dim()}

    _when_rescaled(session, change)


@rescaling_bug("D45", "The learning rate follows the number of processes")
def rate_by_processes(session: Session) -> None:
    """Scale the rate as for a batch that grew with the processes, which it did not."""

    def change(start: int, before: int) -> None:
        factor = session.ranks.count / before
        session.scheduler.base_lrs = [rate * factor for rate in session.scheduler.base_lrs]

    _when_rescaled(session, change)


@rescaling_bug(
    "D46", "The schedule's position is counted in steps of all processes", source="huggingface/accelerate#963"
)
def schedule_by_processes(session: Session) -> None:
    """Take the number of the schedule's steps for one that every process added to."""

    def change(start: int, before: int) -> None:
        session.scheduler.last_epoch = start * session.ranks.count // before

    _when_rescaled(session, change)


@rescaling_bug("D47", "A step's rows follow the number of processes")
def rows_by_processes(session: Session) -> None:
    """Leave the accumulation as it was: so many processes take more or fewer rows in a step."""

    def change(start: int, before: int) -> None:
        change_window(
            session,
            lambda step, window: window(step)[: max(1, len(window(step)) * session.ranks.count // before)],
        )

    _when_rescaled(session, change)


@rescaling_bug("D59", "The gradient is divided by the number of processes that saved")
def divided_by_processes_before(session: Session) -> None:
    """Keep the divisor of the mean over processes, which AdamW hides from losses."""

    def change(start: int, before: int) -> None:
        loss, factor = session.loss, session.ranks.count / before
        session.loss = lambda logits, labels, tokens: _scaled(loss(logits, labels, tokens), factor)

    _when_rescaled(session, change)


def _scaled(loss: torch.Tensor, factor: float) -> torch.Tensor:
    """Return the same loss with a gradient that is so many times as large."""
    return loss.detach() + factor * (loss - loss.detach())


def _when_rescaled(session: Session, change: Callable[[int, int], Any]) -> None:
    """Call this, with the step and the number of processes that saved, when another number has read a checkpoint."""
    from tunecheck.training import native

    loop: Any = native
    save, load, ranks = loop.save_checkpoint, loop.load_checkpoint, session.ranks

    def saved(session: Session, step: int, folder: Path) -> None:
        save(session, step, folder)
        if ranks.rank == 0:
            (folder / SAVED_BY).write_text(str(ranks.count))

    def loaded(session: Session, folder: Path) -> int:
        step: int = load(session, folder)
        if (before := int((folder / SAVED_BY).read_text())) != ranks.count:
            change(step, before)
        return step

    loop.save_checkpoint, loop.load_checkpoint = saved, loaded
