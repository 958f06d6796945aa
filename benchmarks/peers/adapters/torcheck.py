"""torcheck: the optimizer is registered before the loop, and so are the tensors that are to be trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torcheck

from benchmarks.peers.observer import Observer
from benchmarks.peers.scenarios import Scenario


class Torcheck(Observer):
    """Registers the tensors that a user of LoRA would name, or all."""

    def started(self, model: Any, optimizer: Any) -> None:
        """Register optimizer and tensors.

        Its errors would end the training at the first one, which healthy LoRA gives too: they are noted instead.
        """
        torcheck.register(optimizer)
        adapted = any("lora_" in name for name, _ in model.named_parameters())
        for name, parameter in model.named_parameters():
            if "lora_" in name or not adapted:
                self._noted(torcheck.add_tensor, parameter, name, None, True, True, True)
        checked = optimizer.step
        optimizer.step = lambda *args, **kwargs: self._noted(checked, *args, **kwargs)

    def _noted(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except RuntimeError as error:
            named = args[1] if len(args) > 1 else ""
            self.said.extend(f"{named} {line}".strip() for line in str(error).splitlines() if "following" not in line)


def said(scenario: Scenario, folder: Path) -> list[str]:
    """Return its errors."""
    return Torcheck().train(scenario, folder)
