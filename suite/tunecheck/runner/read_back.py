"""What was trained, read back in a fresh process by transformers and peft alone, as its user would. Imports torch."""

from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import save_file
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
    ids = list(session.batches.heldout[0].input_ids)
    with session.seen_whole():
        held = {"logits": _logits(session.model, ids, session.device).contiguous()}
        if (exact := _exact_logits(session.model, ids, session.device)) is not None:
            held["exact"] = exact.contiguous()
    if session.exchange.rank == 0:
        save_file(held, folder / EXPECTED, metadata={"ids": " ".join(map(str, ids))})


def read(run: Run, weights: Path, saved: Path, device: Any, precision: str) -> ReadBack:
    """Load the saved folder without the trainer and compare its logits with those that were left beside it."""
    held, ids = _expected(saved)
    wanted, model = held["logits"], _load(run, weights, saved, device, precision)
    got = _logits(model, ids, device)
    exact = _exact_logits(model, ids, device) if "exact" in held else None
    effect = None
    if run.lora is not None:
        with model.disable_adapter():
            effect = relative_difference(_logits(model, ids, device), wanted)
    return ReadBack(
        files=tuple(sorted(path.name for path in saved.iterdir() if path.name != EXPECTED)),
        logit_difference=relative_difference(got, wanted),
        adapter_effect=effect,
        exact_difference=None if exact is None else relative_difference(exact, held["exact"]),
    )


def merged(session: Session, saved: Path) -> Merged:
    """Merge the saved adapter by the trainer's own function and compare likewise; the session is used up."""
    held, ids = _expected(saved)
    wanted = held["logits"]
    base = _logits(session.model, ids, session.device)  # before the first step adapters do nothing
    effect, rounding = relative_difference(base, wanted), None
    if session.precision != "fp32" and (in_fp32 := _exact_logits(session.model, ids, session.device)) is not None:
        rounding = relative_difference(base, in_fp32)
    del base
    before = adapted_rows(session.model)
    model = session.merge(session, saved)
    share, share_at = merged_share(before, model, saved, session.run.lora)
    return Merged(
        logit_difference=relative_difference(_logits(model, ids, session.device), wanted),
        adapter_effect=effect,
        adapters_left=tuple(adapted_layers(model)),
        packed_left=tuple(name for name, p in model.named_parameters() if is_packed(p)),
        rounding=rounding,
        share=share,
        share_at=share_at,
    )


def _exact_logits(model: Any, ids: list[int], device: Any) -> Any:
    """Return the logits in fp32 arithmetic, whatever the model's own is; None for a base too large to be widened."""
    if widened_bytes(model) > WIDENED_BYTES:
        return None
    with in_fp32(model):
        return _logits(model, ids, device)


def _expected(saved: Path) -> tuple[dict[str, Any], list[int]]:
    with safe_open(saved / EXPECTED, framework="pt") as file:
        ids = [int(token) for token in file.metadata()["ids"].split()]
        names = file.keys()  # a safe_open is no mapping
        return {name: file.get_tensor(name) for name in names}, ids


def _load(run: Run, weights: Path, saved: Path, device: Any, precision: str) -> Any:
    if run.lora is None:
        return AutoModelForCausalLM.from_pretrained(
            saved, dtype="float32", device_map={"": device}, local_files_only=True, use_safetensors=True
        )
    base = load_base(run, weights, device, precision)
    apply_workarounds(base, device, run)
    return PeftModel.from_pretrained(base, saved)


def _logits(model: Any, ids: list[int], device: Any) -> Any:
    return logits_of(model, torch.tensor([ids], device=device), training=False).cpu()


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
        length = float(wanted.double().square().sum())
        if length:
            shares[name] = float((got.double() * wanted.double()).sum()) / length
    at = max(shares, key=lambda name: abs(shares[name] - 1), default="")
    return shares.get(at), at


def _with_adapter(before: torch.Tensor, file: WeightFile, name: str, lora: Any) -> torch.Tensor:
    prefix = f"base_model.model.{name}.lora_"
    rows = evenly(file.shape(f"{prefix}B.weight")[0], ROWS)
    b, a = file.tensor(f"{prefix}B.weight")[rows].float(), file.tensor(f"{prefix}A.weight").float()
    together: torch.Tensor = before + lora.scale_of(name) * (b @ a)
    if lora.use_dora:
        magnitude = file.tensor(f"{prefix}magnitude_vector")[rows].float()
        together = together * (magnitude / together.norm(dim=1))[:, None]
    return together


def _rows(weight: Any) -> torch.Tensor:
    whole = matrix(weight) if is_packed(weight) else weight.detach()
    return whole[evenly(len(whole), ROWS)].float().cpu()
