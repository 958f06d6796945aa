"""Writes what a training did, step by step, so that two trainings can be compared to the last bit."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import transformers


class Ledger:
    """A file of digests of what learns, and of losses in full: the first process's."""

    def __init__(self, folder: str) -> None:
        self.path = Path(folder) / "ledger.txt"
        if os.environ.get("RANK", "0") == "0":
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text("")

    def stepped(self, step: int, model) -> None:
        """Digest every tensor that learns."""
        digest = hashlib.sha256()
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                digest.update(name.encode() + parameter.detach().float().cpu().numpy().tobytes())
        self.write(f"step {step} {digest.hexdigest()}")

    def write(self, line: str) -> None:
        """Append a line."""
        if os.environ.get("RANK", "0") == "0":
            with self.path.open("a") as file:
                file.write(line + "\n")


class LedgerCallback(transformers.TrainerCallback):
    """A ledger that a Trainer keeps."""

    def __init__(self, folder: str) -> None:
        self.ledger = Ledger(folder)

    def on_step_end(self, args, state, control, model=None, **kwargs):
        """Digest every tensor that learns."""
        self.ledger.stepped(state.global_step, model)

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Write the loss and the norm."""
        told = [f"{key} {logs[key]!r}" for key in ("loss", "grad_norm", "eval_loss") if key in (logs or {})]
        self.ledger.write(f"log {state.global_step} {' '.join(told)}")
