"""thermoclaw: its callback in a Trainer; in a loop its observer, splitter and detector after each step."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

from thermoclaw import CollapseDetector, EntropySplit, diagnose
from thermoclaw import Observer as Thermometer
from thermoclaw.integrations.huggingface import ThermoclawCallback
from transformers import TrainerCallback

from benchmarks.peers.observer import Observer
from benchmarks.peers.scenarios import Scenario


class Thermoclaw(Observer):
    """What it recommends at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.callback = ThermoclawCallback(plot_on_end=False)
        self.callbacks = (self.callback, TrainerCallback())
        self.thermometer: Any = None

    def started(self, model: Any, optimizer: Any) -> None:
        """Wrap a loop's optimizer."""
        if self.callback.observer is None:
            self.thermometer = Thermometer(model, optimizer)
            self.splitter = EntropySplit(model, optimizer, self.thermometer)
            self.detector = CollapseDetector(model, optimizer)

    def stepped(self, step: int) -> None:
        """Measure the step."""
        if self.thermometer is not None:
            self.thermometer.step(loss=self.losses[-1])
            self.splitter.step()
            self.detector.step()

    def ended(self) -> None:
        """Ask for the report."""
        if self.thermometer is not None:
            self.said.extend(diagnose(self.thermometer, self.splitter, self.detector).recommendations)
        elif self.callback.observer is not None:
            self.said.extend(diagnose(self.callback.observer, self.callback.splitter).recommendations)


def said(scenario: Scenario, folder: Path) -> list[str]:
    """Return its recommendations."""
    with contextlib.redirect_stdout(io.StringIO()):
        return Thermoclaw().train(scenario, folder)
