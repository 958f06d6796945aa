"""Trainers: one protocol, one file per backend; the table is tunecheck.config.trainers."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from tunecheck.core.errors import Unsupported

if TYPE_CHECKING:
    import torch

    from tunecheck.config.schema import Run
    from tunecheck.core.evidence import Step
    from tunecheck.training.events import Probes
    from tunecheck.training.session import Session


class Trainer(Protocol):
    """A backend: a module or object with these functions."""

    def build(self, run: "Run", folder: Path, device: "torch.device") -> "Session":
        """A session ready for its first step: weights loaded, adapters added, optimizer over the trainable tensors."""

    def train(self, session: "Session", probes: "Probes", steps: range, log: "Callable[[Step], None]") -> None:
        """Carry out these optimizer steps, announcing each moment to the probes and logging every step in order."""

    def save_checkpoint(self, session: "Session", step: int, folder: Path) -> None:
        """Write all that a fresh process needs to go on before this step."""

    def load_checkpoint(self, session: "Session", folder: Path) -> int:
        """Have a fresh session go on from the saved state; returns the step to go on with. Raises WeightsDamaged."""


def trainer_of(run: "Run") -> Trainer:
    """The backend that this run asks for. Imports torch. Raises Unsupported where its package is not installed."""
    from tunecheck.config.trainers import TRAINERS  # brings pydantic; whoever hooks a loop need not

    if (trainer := TRAINERS[run.trainer]).lacks:
        raise Unsupported(f"trainer {run.trainer} {trainer.lacks}")
    return cast(Trainer, importlib.import_module(trainer.module))
