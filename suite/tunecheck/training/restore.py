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
    with kept_modes(model):
        model.train(training)
        yield


@contextmanager
def kept_modes(model: Any) -> Iterator[None]:
    """Put every module's own mode back after the block, whatever it calls: peft's load_adapter is one that sets it."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, was_training in modes:
            if module.training != was_training:  # a module's attributes are slow to set
                module.training = was_training


@contextmanager
def kept_trainable(model: Any) -> Iterator[None]:
    """Put every parameter's requires_grad back after the block: peft sets it in each adapter that it makes active."""
    kept = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    try:
        yield
    finally:
        for name, parameter in model.named_parameters():
            if name in kept:
                parameter.requires_grad_(kept[name])


@contextmanager
def without_adapters(model: Any) -> Iterator[None]:
    """Disable peft's adapters in the block, and change nothing: enabling them thaws what is frozen of them."""
    with kept_trainable(model), model.disable_adapter():
        yield


def dropouts(model: Any) -> Iterator[tuple[Any, str, float]]:
    """Yield module, attribute and share of everything that drops or jitters: torch's `p`, others by name."""
    for module in model.modules():
        for name, share in vars(module).items():
            if isinstance(share, float) and share > 0 and (name == "p" or "drop" in name or "jitter" in name):
                yield module, name, share


@contextmanager
def without_dropout(model: Any) -> Iterator[None]:
    """Drop nothing in the block, whatever the modes: the model's modes choose kernels and checkpointing, too."""
    kept = list(dropouts(model))
    for module, name, _ in kept:
        setattr(module, name, 0.0)
    try:
        yield
    finally:
        for module, name, share in kept:
            setattr(module, name, share)


@contextmanager
def random_state(device: torch.device) -> Iterator[None]:
    """Put torch's random state back after the block: the CPU's, and that of the device where it is a GPU."""
    import torch

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


@contextmanager
def without_repacking(model: Any) -> Iterator[None]:
    """In the block a forward pass in eval mode leaves 4-bit weights as they are.

    bitsandbytes 0.50 on CPUs with AVX512-BF16 repacks them for inference in the first one, and trains no adapter after.
    """
    repacking = [module for module in model.modules() if getattr(module, "support_avx512bf16_for_cpu", False)]
    for module in repacking:
        module.support_avx512bf16_for_cpu = False
    try:
        yield
    finally:
        for module in repacking:
            module.support_avx512bf16_for_cpu = True
