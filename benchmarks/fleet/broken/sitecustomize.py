"""Break the training of whatever process finds this on its import path, by $BROKEN: "bit" or "slow".

For scripts/slurm-here.sh and scripts/ray-here.sh, which put this folder on one node's PYTHONPATH.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

LINEAR = "torch.nn.modules.linear"
WRONG_PRODUCT = 100
"""The product of those with gradients that is wrong, once in a process: early in the tiny run."""
SLOW_SECONDS = 0.02


def break_linear(module: Any) -> None:
    """Replace the forward pass of every linear layer."""
    forward, seen = module.Linear.forward, 0

    def slow(self: Any, inputs: Any) -> Any:
        time.sleep(SLOW_SECONDS)
        return forward(self, inputs)

    def wrong_bit(self: Any, inputs: Any) -> Any:
        nonlocal seen
        product = forward(self, inputs)
        seen += bool(product.requires_grad)
        if seen != WRONG_PRODUCT or not product.requires_grad:
            return product
        import torch

        seen += 1
        changed = torch.zeros_like(product)
        changed.view(-1)[0] = product.detach().reshape(-1)[0] / 8  # one bit of the mantissa
        return product + changed

    module.Linear.forward = slow if os.environ["BROKEN"] == "slow" else wrong_bit


class AfterImport(importlib.abc.MetaPathFinder):
    """Breaks the module of linear layers when it has been imported, and costs nothing where it is not."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module's own spec with what breaks it behind."""
        if name != LINEAR:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def and_break(module: ModuleType) -> None:
            execute(module)
            break_linear(module)

        spec.loader.exec_module = and_break  # type: ignore[method-assign]
        return spec


if os.environ.get("BROKEN") in ("bit", "slow"):
    sys.meta_path.insert(0, AfterImport())
