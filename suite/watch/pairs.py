"""Pairs of answers, of which a training is to prefer the chosen one, as a Trainer's micro-batch holds them.

In the window's own tensors; in the watched process only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from suite.core.evidence import PairsGiven

NAMES = ("input_ids", "ids", "")
"""What is behind `chosen_` and `rejected_` in a column of answers, tokens before text."""


def declares_pairs(dataset: Any) -> bool:
    """Return whether the columns of a data set are pairs."""
    columns = {*(getattr(dataset, "column_names", None) or ())}
    return any({f"{kind}_{name}".rstrip("_") for kind in ("chosen", "rejected")} <= columns for name in NAMES)


def pairs_given(step: int, micro_batches: Sequence[Mapping[str, Any]], rows: int | None) -> PairsGiven | None:
    """Return how many pairs a window holds, and of how many both are alike; None where it holds none.

    A micro-batch of twice as many rows as are declared has all the chosen ones before all the rejected ones, as TRL
    joins them.
    """
    found = [pair for given in micro_batches if (pair := _halves(given, rows)) is not None]
    if not found:
        return None
    alike = [bool((one == other).all()) for chosen, rejected in found for one, other in _rows(chosen, rejected)]
    pairs = sum(len(chosen) for chosen, _ in found)
    return PairsGiven(step=step, pairs=pairs, alike=sum(alike))


def _halves(given: Mapping[str, Any], rows: int | None) -> tuple[Any, Any] | None:
    """Return the tokens of the chosen and of the rejected answers, [pairs, tokens] each."""
    if "chosen_input_ids" in given and "rejected_input_ids" in given:
        return given["chosen_input_ids"], given["rejected_input_ids"]
    ids = given.get("input_ids")
    return (ids[:rows], ids[rows:]) if ids is not None and rows is not None and len(ids) == 2 * rows else None


def _rows(chosen: Any, rejected: Any) -> list[tuple[Any, Any]]:
    """Return the pairs of which both are as long, which alone may be alike."""
    return list(zip(chosen, rejected, strict=True)) if chosen.shape == rejected.shape else []
