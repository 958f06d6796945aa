"""Trainers: one protocol, one file per backend, one table."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    import torch

    from suite.config.schema import Run
    from suite.data import Batches, Tokens
    from suite.evidence import Step
    from suite.probe import Probes


@dataclass(slots=True)
class Session:
    """Everything one training consists of, handed from the backend to the probes.

    The backend's loop reaches every part through this object, so that a probe sees what is really used.
    """

    run: Run
    device: torch.device
    precision: str
    folder: Path
    """The weight files that the model was loaded from."""
    model: Any
    tokenizer: Any
    batches: Batches
    optimizer: Any
    scheduler: Any
    scaler: Any
    """torch.amp.GradScaler, which does nothing unless the precision is fp16; None where the backend keeps its own."""
    loss: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
    """(logits, labels, supervised tokens of the window) -> this micro-batch's share of the window's mean loss."""
    evaluate: Callable[[Session, Sequence[Tokens], int], tuple[float, int]]
    """(session, rows, batch size) -> mean negative log-likelihood per supervised token, and their number."""
    save_adapter: Callable[[Session, Path], None]
    merge: Callable[[Session, Path], Any]
    """(session, folder of a saved adapter) -> the base with that adapter in its weights; the session is used up."""
    workarounds: tuple[str, ...] = ()
    trainer: Any = None
    """The object that carries the training out, where the backend has one."""


class Trainer(Protocol):
    """A backend: a module or object with these functions."""

    def build(self, run: Run, folder: Path, device: torch.device) -> Session:
        """A session ready for its first step: weights loaded, adapters added, optimizer over the trainable tensors."""

    def train(self, session: Session, probes: Probes, steps: range, log: Callable[[Step], None]) -> None:
        """Carry out these optimizer steps, announcing each moment to the probes and logging every step in order."""

    def save_checkpoint(self, session: Session, step: int, folder: Path) -> None:
        """Write all that a fresh process needs to go on before this step."""

    def load_checkpoint(self, session: Session, folder: Path) -> int:
        """Have a fresh session go on from the saved state; returns the step to go on with. Raises WeightsDamaged."""


TRAINERS: dict[str, str] = {
    "native": "suite.trainer.native",
    "transformers": "suite.trainer.transformers_trainer",
}
"""A run's `trainer` to the module that is it: imported when it is asked for, since each brings its own libraries."""


def trainer_of(run: Run) -> Trainer:
    """The backend that this run asks for. Imports torch."""
    return cast(Trainer, importlib.import_module(TRAINERS[run.trainer]))
