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
WRONG_SHARE = 2**-6
"""Of one element of each product: the last bits of bf16, which no check of the node's own can tell from rounding."""
SLOW_SECONDS = 0.1


def break_linear(module: Any) -> None:
    """Replace the forward pass of every linear layer."""
    forward = module.Linear.forward

    def slow(self: Any, inputs: Any) -> Any:
        time.sleep(SLOW_SECONDS)
        return forward(self, inputs)

    def wrong_bit(self: Any, inputs: Any) -> Any:
        import torch

        product = forward(self, inputs)
        wrong = torch.zeros_like(product)
        wrong.view(-1)[0] = product.detach().reshape(-1)[0] * WRONG_SHARE
        return product + wrong

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
