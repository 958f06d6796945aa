"""What is reported: losses, evaluations, tokens, seconds."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.detection.bugs.bug import bug

if TYPE_CHECKING:
    from collections.abc import Callable

    from tunecheck.training.session import Session

unseen = partial(bug, cohort="unseen-fourth", source="thought up, not from a thread")


def _reported(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Have `change` alter what the loop reports of a step."""
    from tunecheck.training.native import PendingSteps

    finish, pending = PendingSteps.finish, PendingSteps
    vars_of: Any = pending
    vars_of.finish = lambda self, **numbers: finish(self, **change(numbers))


@unseen(
    "Z06",
    "Half of the time is reported",
    caught_by="seconds_reported",
    must_say="The reported seconds are not those that passed.",
)
def half_the_time(session: Session) -> None:
    """Report half of each step's seconds, as a timer that runs in the last micro-batch alone."""
    from tunecheck.training import native, tensors

    loop: Any = native
    loop.seconds_between = lambda start, end: tensors.seconds_between(start, end) / 2


@unseen(
    "Z13",
    "A smoothed loss is reported as the step's",
    caught_by="loss_oracle",
    must_say="The reported loss is not the window's.",
)
def smoothed_loss(session: Session) -> None:
    """Report a moving average of the losses, with a weight of 0.9 for the past."""
    past: list[Any] = []

    def smoothed(numbers: dict[str, Any]) -> dict[str, Any]:
        past[:] = [0.9 * past[0] + 0.1 * numbers["loss"] if past else numbers["loss"]]
        return {**numbers, "loss": past[0]}

    _reported(smoothed)


@unseen(
    "Z15",
    "Evaluations after the first are of the base",
    caught_by="evaluation_oracle",
    must_say="The evaluation's loss is not the trained model's.",
)
def base_is_evaluated(session: Session) -> None:
    """Disable the adapters in every evaluation after the first."""
    evaluate, calls = session.evaluate, iter(range(10**9))

    def of_base(session: Session, *rest: Any) -> tuple[float, int]:
        if next(calls) == 0:
            return evaluate(session, *rest)
        with session.model.disable_adapter():
            return evaluate(session, *rest)

    session.evaluate = of_base


@unseen(
    "Z40",
    "Padding counts as tokens",
    caught_by="supervised_tokens",
    must_say="The reported number of tokens is not that of the rows.",
)
def padding_counts(session: Session) -> None:
    """Report the elements of the micro-batches as their tokens, which makes throughput look better."""
    window, seen = session.batches.window, [0]

    def counted(step: int) -> Any:
        found = window(step)
        seen[0] = sum(batch.input_ids.numel() for batch in found)
        return found

    session.batches.window = counted  # type: ignore[method-assign]
    _reported(lambda numbers: {**numbers, "tokens": seen[0]})
