"""trainproof: its callback in a Trainer, with the objective check that it offers, and its rules on the log."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

from trainproof.epoch import check_records
from trainproof.integrations.hf import TrainproofCallback

from benchmarks.peers.observer import Observer
from benchmarks.peers.scenarios import Scenario

NAMES = {"learning_rate": "lr"}
"""Columns of its log to what a Trainer calls them."""


class Trainproof(Observer):
    """What `trainproof epoch` says of the log, at the levels WARN and FAIL."""

    def __init__(self) -> None:
        super().__init__()
        self.callbacks = (TrainproofCallback(objective_check=True),)

    def ended(self) -> None:
        """Judge the log."""
        records: list[dict[str, Any]] = [
            {NAMES.get(name, name): value for name, value in row.items() if isinstance(value, int | float)}
            for row in self.log
            if "loss" in row or "eval_loss" in row
        ] or [{"step": step, "loss": loss} for step, loss in enumerate(self.losses)]
        for finding in check_records(records)["findings"]:
            if finding["level"] in ("WARN", "FAIL"):
                self.said.append(f"{finding['level']} {finding['message']} {finding.get('evidence', '')}")


def said(scenario: Scenario, folder: Path) -> list[str]:
    """Return its findings, those that the callback printed too."""
    with contextlib.redirect_stdout(out := io.StringIO()):
        found = Trainproof().train(scenario, folder)
    return [*found, *(line.strip() for line in out.getvalue().splitlines() if line.startswith("  ["))]
