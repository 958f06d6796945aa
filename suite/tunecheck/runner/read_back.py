"""What was trained, read back in a fresh process by transformers and peft alone, as its user would. Imports torch."""

from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tunecheck.config.schema import Run
from tunecheck.core.evidence import Merged, ReadBack
from tunecheck.probes.reference.forwards import logits_of
from tunecheck.probes.reference.four_bit import is_packed, matrix
from tunecheck.probes.reference.measures import evenly, relative_difference
from tunecheck.probes.reference.weight_file import WeightFile
from tunecheck.training.load import apply_workarounds, load_base
from tunecheck.training.restore import WIDENED_BYTES, adapted_layers, in_fp32, widened_bytes
from tunecheck.training.session import Session

EXPECTED = "expected-logits.safetensors"


def leave(session: Session, folder: Path) -> None:
    """Save what was trained into this folder, and beside it the logits that whoever reads it must get."""
    folder.mkdir(parents=True, exist_ok=True)
    session.save_adapter(session, folder)
    ids = torch.tensor([session.batches.heldout[0].input_ids], device=session.device)
    with session.seen_whole():
        held = {"ids": ids, **_functions(session.model, ids)}
    if session.exchange.rank == 0:
        save_file(held, folder / EXPECTED)


def read(run: Run, weights: Path, saved: Path, device: Any, precision: str) -> ReadBack:
    """Load the saved folder without the trainer and compare its logits with those that were left beside it."""
    wanted, model = load_file(saved / EXPECTED), _load(run, weights, saved, device, precision)
    ids = wanted.pop("ids").to(device)
    got, effect = _functions(model, ids), None
    if run.lora is not None:
        with model.disable_adapter():
            effect = relative_difference(_logits(model, ids), wanted["logits"])
    return ReadBack(
        files=tuple(sorted(path.name for path in saved.iterdir() if path.name != EXPECTED)),
        logit_difference=relative_difference(got["logits"], wanted["logits"]),
        adapter_effect=effect,
        exact_difference=relative_difference(got["exact"], wanted["exact"]) if got.keys() == wanted.keys() else None,
    )


def merged(session: Session, saved: Path) -> Merged:
    """Merge the saved adapter by the trainer's own function and compare likewise; the session is used up."""
    expected = load_file(saved / EXPECTED)
    ids, wanted = expected["ids"].to(session.device), expected["logits"]
    base = _functions(session.model, ids)  # before the first step adapters do nothing
    before = adapted_rows(session.model)
    model = session.merge(session, saved)
    share, share_at = merged_share(before, model, saved, session.run.lora)
    rounded = session.precision != "fp32" and "exact" in base
    return Merged(
        logit_difference=relative_difference(_logits(model, ids), wanted),
        adapter_effect=relative_difference(base["logits"], wanted),
        adapters_left=tuple(adapted_layers(model)),
        packed_left=tuple(name for name, p in model.named_parameters() if is_packed(p)),
        rounding=relative_difference(base["logits"], base["exact"]) if rounded else None,
        share=share,
        share_at=share_at,
    )


def _functions(model: Any, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the logits in the model's arithmetic and, of a base that is not too large to be widened, in fp32."""
    found = {"logits": _logits(model, ids)}
    if widened_bytes(model) <= WIDENED_BYTES:
        with in_fp32(model):
            found["exact"] = _logits(model, ids)
    return found


def _load(run: Run, weights: Path, saved: Path, device: Any, precision: str) -> Any:
    if run.lora is None:
        files = {"local_files_only": True, "use_safetensors": True}
        return AutoModelForCausalLM.from_pretrained(saved, dtype="float32", device_map={"": device}, **files)
    base = load_base(run, weights, device, precision)
    apply_workarounds(base, device, run)
    return PeftModel.from_pretrained(base, saved)


def _logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    return logits_of(model, ids, training=False).cpu().contiguous()


ROWS = 64
"""Of each matrix, evenly spread."""


def adapted_rows(model: Any) -> dict[str, torch.Tensor]:
    """Return rows of every adapted linear of a peft model, to be compared after a merge, by the linear's own name."""
    adapted = [(name, m) for name, m in model.named_modules() if hasattr(m, "lora_A") and hasattr(m, "base_layer")]
    return {name.removeprefix("base_model.model."): _rows(module.base_layer.weight) for name, module in adapted}


def merged_share(before: dict[str, torch.Tensor], merged: Any, saved: Path, lora: Any) -> tuple[float | None, str]:
    """Return how much of its adapter the module furthest from 1 took in, and its name; None where rounding leaves none.

    Weights in 16 bit hold few digits: where an adapter adds less than half a unit in the last place, a merge leaves the
    weight as it was, and so does our own arithmetic. `lora` is the run's section of that name.
    """
    file = WeightFile(saved)
    modules, shares = dict(merged.named_modules()), {}
    for name, rows in before.items():
        if name not in modules:
            return None, name
        weight = modules[name].weight
        start = rows.to(weight.dtype).float()  # unpacked 4-bit weights lie on the dtype's grid when they merge
        got = _rows(weight) - start
        wanted = _with_adapter(start, file, name, lora).to(weight.dtype).float() - start
        if length := float(wanted.double().square().sum()):
            shares[name] = float((got.double() * wanted.double()).sum()) / length
    at = max(shares, key=lambda name: abs(shares[name] - 1), default="")
    return shares.get(at), at


def _with_adapter(before: torch.Tensor, file: WeightFile, name: str, lora: Any) -> torch.Tensor:
    prefix = f"base_model.model.{name}.lora_"
    rows = evenly(file.shape(f"{prefix}B.weight")[0], ROWS)
    b, a = file.tensor(f"{prefix}B.weight")[rows].float(), file.tensor(f"{prefix}A.weight").float()
    together: torch.Tensor = before + lora.scale_of(name) * (b @ a)
    if lora.use_dora:
        together = together * (file.tensor(f"{prefix}magnitude_vector")[rows].float() / together.norm(dim=1))[:, None]
    return together


def _rows(weight: Any) -> torch.Tensor:
    every = matrix(weight)
    return every[evenly(len(every), ROWS)].cpu()
