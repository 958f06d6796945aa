"""Does this machine hold a run? A sentence when it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suite.config.schema import GIB, Run

if TYPE_CHECKING:
    from suite.hardware import Hardware


def obstacle(run: Run, hardware: Hardware) -> str | None:
    """Why this machine cannot carry the run out, as a sentence; None when it can.

    A card that does not tell its free memory is no obstacle: the run will show whether it fits.
    """
    if run.device != "cuda" and run.vram is None:
        return None
    if not hardware.visible_gpus:
        return f"needs {_need(run)}; {no_gpu(hardware)}"
    known = [gpu for gpu in hardware.visible_gpus if gpu.free_bytes is not None]
    best = max(known, key=lambda gpu: gpu.free_bytes or 0, default=None)
    if run.vram is None or best is None or (best.free_bytes or 0) >= run.vram:
        return None
    free, total = (best.free_bytes or 0) / GIB, (best.total_bytes or 0) / GIB
    return f"needs {_need(run)}; {free:.1f} GiB of {total:.1f} GiB are free on {best.name}"


def no_gpu(hardware: Hardware) -> str:
    """Why this machine shows no GPU, and what to do about it."""
    reasons = (hardware.nvml_problem or hardware.visible_problem, hardware.nvml_remedy)
    return "this machine shows none: " + "; ".join(reason for reason in reasons if reason)


def _need(run: Run) -> str:
    return "a GPU" if run.vram is None else f"a GPU with {run.vram / GIB:.1f} GiB of free memory"
