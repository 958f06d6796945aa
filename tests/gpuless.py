"""A GPU that is none: attempts on it are trained on the CPU, in real child processes, and run out of memory as told.

The one fake is at the edge, where the runner starts a child. Nothing here was measured on a GPU.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from injected import OutOfMemoryAt

from tunecheck import runner as runner_module
from tunecheck.core.evidence import Telemetry
from tunecheck.runner.outcome import Outcome
from tunecheck.runner.request import Request

MIB = 2**20


class Meter:
    """A card that is as free after an attempt as it was before."""

    def __init__(self, card: str | None, folder: object) -> None:
        self._card = card or ""

    def watch(self, process_id: int) -> None:
        """Nothing to sample."""

    def stop(self) -> list[Telemetry]:
        """What there is to see of no card."""
        return [Telemetry(uuid=self._card, complete=True, used_bytes_before=600 * MIB, used_bytes_after=600 * MIB)]


def gpu_that_runs_out(monkeypatch: Any, *steps: int | None) -> list[Request]:
    """The first trainings on the GPU run out of memory at these steps (None: it holds); returns what was asked for.

    A training on the CPU is left alone.
    """
    real, asked = runner_module.run_child, []
    left = list(steps)

    def run_child(request: Request, **options: Any) -> Outcome:
        asked.append(request)
        if request.device == "cuda":
            step = left.pop(0) if left and request.purpose == "train" else None
            faults = () if step is None else (OutOfMemoryAt(step),)
            request = dataclasses.replace(request, device="cpu", cards=None, faults=(*request.faults, *faults))
        return real(request, **{**options, "gpu": False})

    monkeypatch.setattr(runner_module, "run_child", run_child)
    monkeypatch.setattr(runner_module, "Meter", Meter)
    return asked
