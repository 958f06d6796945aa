"""The table of users' mistakes, and what several of them are made by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import Trainer

from benchmarks.scripts.script import IGNORED, Script, plain_loop

Change = Callable[[Script], None]


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake, and the checks that name it: one of them is enough."""

    change: Change
    named_by: frozenset[str]

    @property
    def title(self) -> str:
        """What is wrong, in a sentence."""
        return (self.change.__doc__ or "").strip()


MISTAKES: dict[str, Mistake] = {}


def mistake(*checks: str) -> Callable[[Change], Change]:
    """Add a mistake that one of these checks must name."""

    def add(change: Change) -> Change:
        MISTAKES[change.__name__] = Mistake(change, frozenset(checks))
        return change

    return add


def with_loss(loss: Callable[[Any, Any, Any], torch.Tensor]) -> type[Trainer]:
    """Return a Trainer whose compute_loss is this, of logits, labels and the window's number of tokens."""

    class Losing(Trainer):
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            outputs = model(**inputs)
            value = loss(outputs.logits.float(), inputs["labels"], num_items_in_batch)
            return (value, outputs) if return_outputs else value

    return Losing


def entropy(logits: torch.Tensor, labels: torch.Tensor, reduction: str = "sum") -> torch.Tensor:
    """Return the cross entropy of shifted labels."""
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED, reduction=reduction
    )


def in_a_loop(**changes: Any) -> Callable[[Script], None]:
    """Return a change of the script: a plain loop, with these parts changed."""
    return lambda script: setattr(script, "loop", partial(plain_loop, **changes))
