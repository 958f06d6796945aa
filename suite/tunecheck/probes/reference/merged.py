"""How much of an adapter is in the weights that it was merged into, by arithmetic of our own from the saved file.

Weights in 16 bit hold few digits: where an adapter adds less than half a unit in the last place, a merge leaves the
weight as it was, and so does ours. Imports torch; child process only.
"""

from pathlib import Path
from typing import Any

import torch

from tunecheck.probes.reference.four_bit import is_packed, matrix
from tunecheck.probes.reference.weight_file import WeightFile

ROWS = 64
"""Of each matrix, evenly spread."""


class MergedShare:
    """Keeps rows of every adapted linear before a merge and compares them with those after it."""

    def __init__(self, model: Any, lora: Any) -> None:
        """`model` is the peft model before the merge, `lora` the run's section of that name."""
        self._lora = lora
        self._before: dict[str, torch.Tensor] = {}
        for name, module in model.named_modules():
            if hasattr(module, "lora_A") and hasattr(module, "base_layer"):
                self._before[name.removeprefix("base_model.model.")] = _rows(module.base_layer.weight)

    def worst(self, merged: Any, saved: Path) -> tuple[float | None, str]:
        """Return the share of the module furthest from 1, and its name; None where rounding leaves no change."""
        file = WeightFile(saved)
        modules, shares = dict(merged.named_modules()), {}
        for name, before in self._before.items():
            if name not in modules:
                return None, name
            weight = modules[name].weight
            start = before.to(weight.dtype).float()  # unpacked 4-bit weights lie on the dtype's grid when they merge
            got = _rows(weight) - start
            wanted = self._wanted(file, name, start).to(weight.dtype).float() - start
            length = float(wanted.double().square().sum())
            if length:
                shares[name] = float((got.double() * wanted.double()).sum()) / length
        at = max(shares, key=lambda name: abs(shares[name] - 1), default="")
        return shares.get(at), at

    def _wanted(self, file: WeightFile, name: str, before: torch.Tensor) -> torch.Tensor:
        """Return the rows with the adapter's part in them, in fp32."""
        prefix = f"base_model.model.{name}.lora_"
        rows = _taken(file.tensor(f"{prefix}B.weight").shape[0])
        b, a = file.tensor(f"{prefix}B.weight")[rows].float(), file.tensor(f"{prefix}A.weight").float()
        together: torch.Tensor = before + self._lora.scale * (b @ a)
        if self._lora.use_dora:
            magnitude = file.tensor(f"{prefix}magnitude_vector")[rows].float()
            together = together * (magnitude / together.norm(dim=1))[:, None]
        return together


def _taken(rows: int) -> slice:
    return slice(None, None, max(1, rows // ROWS))


def _rows(weight: Any) -> torch.Tensor:
    """Return some rows of this matrix on the CPU, in fp32."""
    whole = matrix(weight) if is_packed(weight) else weight.detach()
    return whole[_taken(len(whole))].float().cpu()
