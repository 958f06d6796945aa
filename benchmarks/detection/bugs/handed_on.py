"""What is handed on: the adapter's files, the merged model, the checkpoint."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.detection.bugs.bug import bug

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tunecheck.training.session import Session

unseen = partial(bug, cohort="unseen-fourth", source="thought up, not from a thread")


def _saved(session: Session, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Have the adapter's file hold what `change` makes of its tensors."""
    from safetensors.torch import load_file, save_file

    save = session.save_adapter

    def changed(session: Session, folder: Path) -> None:
        save(session, folder)
        path = folder / "adapter_model.safetensors"
        save_file(change(load_file(path)), path, metadata={"format": "pt"})

    session.save_adapter = changed


@unseen(
    "Z09",
    "The adapter of the start is saved",
    caught_by=("adapter_round_trip", "adapter_reads_back"),
    must_say="What is saved is not what was trained.",
)
def saves_the_start(session: Session) -> None:
    """Write the tensors of before the training, which a wrapper kept."""
    start = {n.replace(".default", ""): p.detach().clone() for n, p in session.model.named_parameters() if "lora_" in n}
    _saved(session, lambda tensors: {name: start[name] for name in tensors})


@unseen(
    "Z10",
    "Two layers' adapters are saved under each other's names",
    caught_by=("adapter_round_trip", "adapter_reads_back"),
    must_say="What is saved is not what was trained.",
)
def swapped_layers(session: Session) -> None:
    """Exchange the names of layers 0 and 1."""

    def swapped(name: str) -> str:
        return name.replace(".layers.0.", ".layers.x.").replace(".layers.1.", ".layers.0.").replace(".x.", ".1.")

    _saved(session, lambda tensors: {swapped(name): tensor for name, tensor in tensors.items()})


@unseen(
    "Z11",
    "Merging scales twice",
    caught_by="merge_keeps_function",
    tier="convergence",
    must_say="The merged model is not the trained one.",
)
def merged_twice_scaled(session: Session) -> None:
    """Multiply what is added to the base by the adapter's scaling once more."""
    from peft.tuners.lora.layer import Linear

    delta: Any = Linear.get_delta_weight
    layer: Any = Linear
    layer.get_delta_weight = lambda self, adapter: delta(self, adapter) * self.scaling[adapter]


@unseen(
    "Z46",
    "The saved configuration forgets rsLoRA",
    caught_by=("adapter_round_trip", "adapter_reads_back"),
    settings=("lora.use_rslora=true",),
    must_say="The saved adapter's configuration scales otherwise than the training did.",
)
def rslora_forgotten(session: Session) -> None:
    """Write adapter_config.json without use_rslora: whoever loads it scales by alpha / r."""
    import json

    save = session.save_adapter

    def forgetting(session: Session, folder: Path) -> None:
        save(session, folder)
        path = folder / "adapter_config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        del config["use_rslora"]
        path.write_text(json.dumps(config), encoding="utf-8")

    session.save_adapter = forgetting


@unseen(
    "Z47",
    "The adapter is saved by way of fp16",
    caught_by="adapter_round_trip",
    must_say="The file's tensors are not those that were trained, bit for bit.",
)
def saved_by_way_of_fp16(session: Session) -> None:
    """Round every tensor to fp16 and back before it is written."""
    _saved(session, lambda tensors: {name: tensor.half().to(tensor.dtype) for name, tensor in tensors.items()})


@unseen(
    "Z48",
    "A resumed optimizer counts its steps from zero",
    caught_by="resume_equals",
    tier="convergence",
    must_say="The resumed training is not the uninterrupted one.",
)
def step_count_lost(session: Session) -> None:
    """Reset the optimizer's count of steps when a checkpoint is loaded: its bias is corrected once more."""
    from tunecheck.training import native

    load, loop = native.load_checkpoint, native

    def forgetting(session: Session, folder: Path) -> int:
        step = load(session, folder)
        for state in session.optimizer.state.values():
            state["step"].zero_()
        return step

    vars(loop)["load_checkpoint"] = forgetting
