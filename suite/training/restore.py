"""Contexts that leave a model's modes and the random state as they found them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@contextmanager
def model_mode(model: Any, training: bool) -> Iterator[None]:
    """Run the block in train mode or in eval mode and put every module's own mode back.

    Each module's, not the root's for all: `model.train(was_training)` would repair a single module that a bug left in
    eval mode, and so hide it.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, was_training in modes:
            module.training = was_training


@contextmanager
def random_state(device: torch.device) -> Iterator[None]:
    """Put torch's random state back after the block: the CPU's, and that of the device where it is a GPU."""
    import torch

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
