"""traintools: batches are inspected, gradients before each step, and a Trainer has its callback."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import torch
from traintools import BatchInspector, GradientHealthMonitor
from traintools.callbacks.huggingface import TraintoolsCallback

from benchmarks.peers.observer import Observer
from benchmarks.peers.scenarios import Scenario


class Traintools(Observer):
    """The quick start's lines. The callback measures every 10 steps; its 200 would be never."""

    def __init__(self) -> None:
        super().__init__()
        self.callbacks = (TraintoolsCallback(gns_freq=10, plasticity_freq=10),)
        self.inspector, self.monitor = BatchInspector(), GradientHealthMonitor(max_grad_norm=1.0)

    def batch(self, batch: dict[str, torch.Tensor]) -> None:
        """Inspect tokens and the labels that are learned: of -100 it knows nothing."""
        labels = batch["labels"]
        self._warned(self.inspector.inspect(inputs=batch["input_ids"], targets=labels[labels != -100]))

    def gradients(self, step: int, model: Any, optimizer: Any) -> None:
        """Inspect them as the loop is about to step."""
        self._warned(self.monitor.inspect(model, step=step, lr=optimizer.param_groups[0]["lr"]))

    def _warned(self, report: Any) -> None:
        self.said.extend(map(str, report.warnings))


def said(scenario: Scenario, folder: Path) -> list[str]:
    """Return its warnings, the callback's too."""
    with contextlib.redirect_stdout(out := io.StringIO()):
        warned = Traintools().train(scenario, folder)
    return [*warned, *(line for line in out.getvalue().splitlines() if " ! " in line or "early-stop" in line)]
