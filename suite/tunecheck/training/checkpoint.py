"""Checkpoints to resume from, by any number of processes: whole tensors in safetensors, and JSON, never pickle."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tunecheck.config.compatibility import config_error
from tunecheck.core.errors import WeightsDamaged
from tunecheck.training.hooks import tensors_of
from tunecheck.training.session import Session
from tunecheck.training.tensors import learning, sharded_as, whole

STATE, TENSORS = "trainer_state.json", "trainer_state.safetensors"


def save_checkpoint(session: Session, step: int, folder: Path) -> None:
    """Write trained tensors, optimizer, schedule, scaler and RNG; one rank does for all, with the state of each."""
    tensors = {f"model/{name}": tensor for name, tensor in trained(session).items()}
    groups = session.optimizer.state_dict()
    for index, state in groups["state"].items():
        tensors |= {f"optimizer/{index}/{key}": whole(value) for key, value in state.items()}
    own = {"rng/cpu": torch.get_rng_state()}
    if session.device.type == "cuda":
        own["rng/cuda"] = torch.cuda.get_rng_state(session.device).cpu()
    for rank, states in enumerate(session.ranks.gathered(own)):
        tensors |= {_of_rank(name, rank): held for name, held in states.items()}
    if session.ranks.rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, folder / TENSORS)
        state = {
            "step": step,
            "rows": step * session.batches.rows_per_step,
            "param_groups": groups["param_groups"],
            "scheduler": session.scheduler.state_dict(),
            "scaler": None if session.scaler is None else session.scaler.state_dict(),
        }
        (folder / STATE).write_text(json.dumps(state), encoding="utf-8")
    session.ranks.wait()


def load_checkpoint(session: Session, folder: Path) -> int:
    """Restore a fresh session; return its next step. Raises WeightsDamaged, and ConfigError for other rows per step."""
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        tensors = load_file(folder / TENSORS)
    except (OSError, ValueError) as error:
        why = f"the checkpoint cannot be read: {error}; train again to write a new one"
        raise WeightsDamaged(f"{folder}: {why}") from error
    _require_same_rows(session, state)
    current = dict(learning(session.model))
    saved = {name.removeprefix("model/"): tensor for name, tensor in tensors.items() if name.startswith("model/")}
    if saved.keys() != current.keys():
        raise WeightsDamaged(f"{folder}: the checkpoint holds other tensors than this run trains; train again")
    with torch.no_grad():
        for name, tensor in saved.items():
            current[name].copy_(sharded_as(current[name], tensor))
    optimizer_state: dict[int, dict[str, Any]] = {}
    parameters = tensors_of(session.optimizer)
    for name, tensor in tensors.items():
        if name.startswith("optimizer/"):
            _, index, key = name.split("/")
            held = parameters[int(index)]
            optimizer_state.setdefault(int(index), {})[key] = sharded_as(held, tensor) if tensor.dim() else tensor
    session.optimizer.load_state_dict({"state": optimizer_state, "param_groups": state["param_groups"]})
    session.scheduler.load_state_dict(state["scheduler"])
    if session.scaler is not None:
        session.scaler.load_state_dict(state["scaler"])
    step = int(state["step"])
    _restore_random_state(session, tensors, step)
    return step


def _require_same_rows(session: Session, state: dict[str, Any]) -> None:
    """Require that this session's steps end where the saved ones did: otherwise rows come twice, or never."""
    step, rows = int(state["step"]), int(state["rows"])
    if rows != step * session.batches.rows_per_step:
        rule = f"should be such that {session.run.processes} processes take {rows / step:g} rows a step"
        rule = f"{rule}, as before the checkpoint after {rows} rows (got {session.batches.rows_per_step})"
        raise config_error(session.run, ("training.gradient_accumulation_steps", rule))


def _restore_random_state(session: Session, tensors: dict[str, torch.Tensor], step: int) -> None:
    """Take this rank's random state; where fewer ranks saved one, draw other masks than before the checkpoint."""
    rank = session.ranks.rank
    if (own := tensors.get(_of_rank("rng/cpu", rank))) is None:
        session.ranks.seed(session.run.training.seed + step)
        return
    torch.set_rng_state(own)
    if session.device.type == "cuda":
        torch.cuda.set_rng_state(tensors[_of_rank("rng/cuda", rank)], session.device)


def _of_rank(name: str, rank: int) -> str:
    """Return the name in the file, that of a single process for rank 0."""
    return f"{name}/{rank}" if rank else name


def trained(session: Session) -> dict[str, torch.Tensor]:
    """The tensors that learn, whole, by name."""
    return {name: whole(tensor) for name, tensor in learning(session.model)}
