"""A pytest plugin (`-p changed_training`): changes between two sessions that no check fails for.

$CHANGED_TRAINING names the functions, separated by commas. Each is called with the session in the training child.
"""

from __future__ import annotations

import functools
import os
import time
from typing import TYPE_CHECKING, Any

import tunecheck.runner

if TYPE_CHECKING:
    from tunecheck.training.session import Session

GROWTH_BYTES = 32 * 2**20
SLEEP_SECONDS = 0.25
CRASH_AFTER = 6
"""Losses, of which an evaluation takes two and a window two."""


def growth(session: Session) -> None:
    """The model holds 32 MiB that nobody uses, and gives them back with everything else."""
    import torch

    session.model.unused = torch.zeros(GROWTH_BYTES, dtype=torch.uint8)


def crash(session: Session) -> None:
    """Raise in the forward pass of the third window, as a wrong dtype does."""
    inner, calls = session.loss, []

    def loss(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) > CRASH_AFTER:
            raise RuntimeError("expected scalar type Float")
        return inner(*arguments)

    session.loss = loss


def slowdown(session: Session) -> None:
    """Every loss is computed a quarter of a second late."""
    inner = session.loss

    def loss(*arguments: Any) -> Any:
        time.sleep(SLEEP_SECONDS)
        return inner(*arguments)

    session.loss = loss


def pytest_configure() -> None:
    """Every run of this session is trained with these changes."""
    asked = [name for name in os.environ.get("CHANGED_TRAINING", "").split(",") if name]
    faults = tuple(globals()[name] for name in asked)
    tunecheck.runner.Runner = functools.partial(tunecheck.runner.Runner, faults=faults)  # type: ignore[misc]
