"""The second blind set's faults of saving, resuming, evaluation and merging. Imports torch; child process only."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.detection.bugs.parts import adapted_modules, on_resume
from suite.training.data import Tokens

if TYPE_CHECKING:
    from suite.training.session import Session


def targets_lost_on_save(session: Session) -> None:
    """The saved configuration names q_proj alone: who reads it back drops the other tensors without a word."""

    def shorten(folder: Path) -> None:
        file = folder / "adapter_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "target_modules": ["q_proj"]}))

    _after_save(session, shorten)


def magnitudes_not_saved(session: Session) -> None:
    """The export knows A and B only: DoRA's trained magnitudes are not in the file, and a reader makes new ones."""
    from safetensors.torch import load_file, save_file

    def drop(folder: Path) -> None:
        file = folder / "adapter_model.safetensors"
        tensors = {name: tensor.clone() for name, tensor in load_file(file).items() if "magnitude" not in name}
        save_file(tensors, file, metadata={"format": "pt"})

    _after_save(session, drop)


def _after_save(session: Session, change: Callable[[Path], None]) -> None:
    """Every saved adapter's folder is changed by this function."""
    save = session.save_adapter

    def changed(session: Session, folder: Path) -> None:
        save(session, folder)
        change(folder)

    session.save_adapter = changed


def moments_in_another_order(session: Session) -> None:
    """A resumed optimizer hands its averages out in another order: tensors of one shape have each other's."""

    def exchange() -> None:
        by_shape: dict[torch.Size, list[Any]] = {}
        for parameter in session.optimizer.param_groups[0]["params"]:
            by_shape.setdefault(parameter.shape, []).append(parameter)
        state = session.optimizer.state
        for alike in by_shape.values():
            held = [state[parameter] for parameter in alike]
            for parameter, other in zip(alike, reversed(held), strict=True):
                state[parameter] = other

    on_resume(session, exchange)


def base_rate_lost_on_resume(session: Session) -> None:
    """A resumed schedule takes the rate that the checkpoint was left with for its base rate."""

    def forget() -> None:
        session.scheduler.base_lrs = [group["lr"] for group in session.optimizer.param_groups]

    on_resume(session, forget)


def last_batch_filled_up(session: Session) -> None:
    """Evaluation fills its last batch up with the first rows, which count twice."""
    evaluate = session.evaluate

    def changed(session: Session, rows: Sequence[Tokens], batch_size: int) -> tuple[float, int]:
        return evaluate(session, [*rows, *rows[: -len(rows) % batch_size]], batch_size)

    session.evaluate = changed


def merged_for_evaluation(session: Session) -> None:
    """Adapters are merged for each evaluation and taken out after it: the base is rounded to 4 bit twice on the way."""
    evaluate = session.evaluate

    def changed(session: Session, rows: Sequence[Tokens], batch_size: int) -> tuple[float, int]:
        for module in adapted_modules(session):
            module.merge()
        try:
            return evaluate(session, rows, batch_size)
        finally:
            for module in adapted_modules(session):
                module.unmerge()

    session.evaluate = changed


def merged_transposed(session: Session) -> None:
    """The merge adds square weights' part transposed: it guesses the layout from the shape."""
    import peft.tuners.lora.layer

    linear: Any = peft.tuners.lora.layer.Linear
    merge, delta = session.merge, linear.get_delta_weight

    def turned(layer: Any, adapter: str) -> torch.Tensor:
        part: torch.Tensor = delta(layer, adapter)
        return part.T.contiguous() if part.shape[0] == part.shape[1] else part

    def changed(session: Session, saved: Path) -> Any:
        linear.get_delta_weight = turned
        try:
            return merge(session, saved)
        finally:
            linear.get_delta_weight = delta

    session.merge = changed
