"""Files, merges and 4-bit tables that are right but for a detail."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from benchmarks.detection.bugs.bug import bug
from benchmarks.detection.bugs.parts import lora_parameters

if TYPE_CHECKING:
    from pathlib import Path

    from tunecheck.training.session import Session

SAVED = ("adapter_round_trip", "adapter_reads_back")


def _change_configuration(session: Session, **changes: Any) -> None:
    """Change these keys of every saved adapter's configuration; one that becomes None is left out."""
    save = session.save_adapter

    def changed(saved: Session, folder: Path) -> None:
        save(saved, folder)
        file = folder / "adapter_config.json"
        written = {**json.loads(file.read_text()), **changes}
        file.write_text(json.dumps({key: value for key, value in written.items() if value is not None}))

    session.save_adapter = changed


@bug(
    "Y50",
    "The saved configuration names another base model",
    caught_by=SAVED,
    source="thought up; a mirror's name written into the file",
    cohort="unseen-third",
)
def another_base_named(session: Session) -> None:
    """Save the name of another model as that of the base: who loads by the file gets other weights below."""
    _change_configuration(session, base_model_name_or_path="meta-llama/Llama-2-7b-hf")


@bug("Y51", "The saved configuration has lost the task", caught_by=SAVED, cohort="unseen-third")
def task_lost_on_save(session: Session) -> None:
    """Save a configuration without its task type: it loads as a bare PeftModel, without generate's preparations."""
    _change_configuration(session, task_type=None)


@bug(
    "Y52",
    "The saved configuration targets a module more",
    caught_by=SAVED,
    cohort="unseen-third",
)
def target_added_on_save(session: Session) -> None:
    """Save one target more than was trained: a reader adds adapters that no file has."""
    targets = [*session.run.lora.target_modules, "o_proj"] if session.run.lora else []
    _change_configuration(session, target_modules=targets)


@bug(
    "Y53",
    "A merge divides by what dropout keeps",
    caught_by="merge_keeps_function",
    cohort="unseen-third",
    settings=("probes.merge=true", "lora.dropout=0.1"),
    tier="convergence",
)
def merged_with_dropouts_scale(session: Session) -> None:
    """Divide what is merged by 1 - p, as dropout's own scale in train mode would."""
    import peft.tuners.lora.layer

    linear: Any = peft.tuners.lora.layer.Linear
    merge, delta = session.merge, linear.get_delta_weight

    def changed(session: Session, saved: Path) -> Any:
        linear.get_delta_weight = lambda layer, adapter: delta(layer, adapter) / 0.9
        try:
            return merge(session, saved)
        finally:
            linear.get_delta_weight = delta

    session.merge = changed


@bug(
    "Y54",
    "A merge leaves the file's base in one layer",
    caught_by="merge_keeps_function",
    cohort="unseen-third",
    settings=("probes.merge=true",),
    tier="convergence",
)
def one_layer_not_unpacked(session: Session) -> None:
    """Merge into the unpacked 4-bit weights, but in the first layer into the file's."""
    import torch
    from transformers import AutoModelForCausalLM

    merge = session.merge

    def changed(session: Session, saved: Path) -> Any:
        packed = {name: weight for name, weight in _dequantized(session).items() if ".layers.0." in name}
        merged = merge(session, saved)
        base = AutoModelForCausalLM.from_pretrained(session.folder, dtype=merged.dtype, local_files_only=True)
        with torch.no_grad():
            for name, old in packed.items():
                ours = merged.get_submodule(name).weight
                ours.add_(base.get_submodule(name).weight.to(ours) - old.to(ours))
        return merged

    session.merge = changed


def _dequantized(session: Session) -> dict[str, Any]:
    """Return the base's 4-bit linears by their names without peft's prefixes, their weights unpacked."""
    from bitsandbytes.functional import dequantize_4bit

    return {
        name.removeprefix("base_model.model.").removesuffix(".base_layer"): dequantize_4bit(weight.data, state)
        for name, module in session.model.named_modules()
        if (weight := getattr(module, "weight", None)) is not None and (state := getattr(weight, "quant_state", None))
    }


@bug(
    "Y55",
    "A value of the 4-bit table is never used",
    caught_by=("quantization_as_configured", "kernel_agrees", "base_matches_file"),
    source="thought up; two values of a table that was typed in are the same",
    cohort="unseen-third",
)
def table_value_unused(session: Session) -> None:
    """Read every weight of code 3 as one of code 2."""
    import torch

    weights: list[Any] = [getattr(module, "weight", None) for module in session.model.modules()]
    packed = [weight.data for weight in weights if getattr(weight, "quant_state", None) is not None]
    for data in packed:
        bytes_ = data.view(torch.uint8)
        low, high = bytes_ & 15, bytes_ >> 4
        bytes_.copy_(torch.where(low == 3, 2, low) | torch.where(high == 3, 2, high) << 4)
    assert packed, "no linear is in 4 bit: the bug would change nothing"


@bug(
    "Y56",
    "The saved A is that of the start",
    caught_by=SAVED,
    cohort="unseen-third",
)
def start_of_a_saved(session: Session) -> None:
    """Save B as it was trained, and A as it was drawn."""
    import torch

    drawn = {name: p.detach().clone() for name, p in lora_parameters(session, "lora_A")}
    save = session.save_adapter

    def changed(saved: Session, folder: Path) -> None:
        trained = {name: p.detach().clone() for name, p in lora_parameters(session, "lora_A")}
        with torch.no_grad():
            for name, parameter in lora_parameters(session, "lora_A"):
                parameter.copy_(drawn[name])
            save(saved, folder)
            for name, parameter in lora_parameters(session, "lora_A"):
                parameter.copy_(trained[name])

    session.save_adapter = changed
