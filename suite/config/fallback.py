"""The key `fallback`: which rungs of the ladder a run goes down when the GPU's memory does not do."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator

Rung = Literal["lean", "offload", "evaluate_on_gpu", "cpu"]
"""suite.runner.fallback_chain says what each of them changes."""
RUNGS: tuple[str, ...] = get_args(Rung)
"""From the top down."""


def as_ladder(given: Any) -> Any:
    """The one form that the rest of the suite sees: a list of rungs. "none" is an empty one, a name stands for itself.

    Anything else comes back as it is, for pydantic to judge.
    """
    if given == "none":
        return []
    return [given] if isinstance(given, str) else given


Fallback = Annotated[list[Rung], BeforeValidator(as_ladder, json_schema_input_type=list[Rung] | Rung | Literal["none"])]


def out_of_order(rungs: list[Rung]) -> str | None:
    """What is wrong with the order of these rungs, as a rule; None when each comes once and none above another."""
    if rungs == [rung for rung in RUNGS if rung in rungs]:
        return None
    return f"should name each rung once, from the top down: {', '.join(RUNGS)} (got {', '.join(rungs)})"
