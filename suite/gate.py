"""Does this machine hold a run? A sentence when it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suite.config.schema import GIB, Run

if TYPE_CHECKING:
    from suite.hardware import Hardware


def obstacle(run: Run, hardware: Hardware) -> str | None:
    """Why this machine cannot carry the run out, as a sentence; None when it can."""
    needs_gpu = run.device == "cuda" or run.vram is not None
    if not needs_gpu:
        return None
    if not hardware.visible_gpus:
        why = hardware.nvml_problem or hardware.visible_problem or "no GPU is visible to this process"
        return f"needs a GPU{_amount(run)}; this machine has none to offer: {why}"
    best = max(hardware.visible_gpus, key=lambda gpu: gpu.free_bytes or 0)
    if run.vram is not None and (best.free_bytes or 0) < run.vram:
        free, total = (best.free_bytes or 0) / GIB, (best.total_bytes or 0) / GIB
        return f"needs{_amount(run)}; {free:.1f} GiB of {total:.1f} GiB are free on {best.name}"
    return None


def _amount(run: Run) -> str:
    return "" if run.vram is None else f" {run.vram / GIB:.1f} GiB of free GPU memory"
