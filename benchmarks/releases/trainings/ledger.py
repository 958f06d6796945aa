"""Writes what a training did, step by step, so that two trainings can be compared to the last bit."""

from __future__ import annotations

import hashlib
from pathlib import Path

import transformers


class Ledger(transformers.TrainerCallback):
    """Writes the digest of what learns after each step, and each logged loss in full."""

    def __init__(self, folder: str) -> None:
        self.path = Path(folder) / "ledger.txt"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("")

    def on_step_end(self, args, state, control, model=None, **kwargs):
        """Digest every tensor that learns."""
        digest = hashlib.sha256()
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                digest.update(name.encode() + parameter.detach().float().cpu().numpy().tobytes())
        self._write(f"step {state.global_step} {digest.hexdigest()}")

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Write the loss and the norm."""
        told = [f"{key} {logs[key]!r}" for key in ("loss", "grad_norm", "eval_loss") if key in (logs or {})]
        self._write(f"log {state.global_step} {' '.join(told)}")

    def _write(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(line + "\n")
