"""Steps of the out-of-memory fallback chain that the key `fallback` may name."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator

FallbackStep = Literal["lean", "offload", "evaluate_on_gpu", "cpu"]
"""Name of a step; tunecheck.runner.fallback_chain defines what each changes."""
FALLBACK_STEPS: tuple[str, ...] = get_args(FallbackStep)
"""All steps in the order in which a chain takes them."""


def as_chain(given: Any) -> Any:
    """Return the fallback chain as a list of steps: "none" is an empty one, a single name a chain of one step.

    Anything else is returned unchanged, for pydantic to reject.
    """
    if given == "none":
        return []
    return [given] if isinstance(given, str) else given


Fallback = Annotated[
    list[FallbackStep],
    BeforeValidator(as_chain, json_schema_input_type=list[FallbackStep] | FallbackStep | Literal["none"]),
]


def order_problem(chain: list[FallbackStep]) -> str | None:
    """Return the rule that the order of these steps breaks; None when each comes once and in the chain's order."""
    if chain == [step for step in FALLBACK_STEPS if step in chain]:
        return None
    return f"should name each fallback step once, in the order {', '.join(FALLBACK_STEPS)} (got {', '.join(chain)})"
