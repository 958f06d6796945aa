"""Contexts that leave a model's modes and the random state as they found them."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@contextmanager
def model_mode(model: Any, training: bool) -> Iterator[None]:
    """Run the block in train mode or in eval mode and put every module's own mode back.

    Each module's, not the root's for all: `model.train(was_training)` would repair a single module that a bug left in
    eval mode, and so hide it.
    """
    with kept_attributes(model):
        model.train(training)
        yield


@contextmanager
def kept_attributes(model: Any) -> Iterator[None]:
    """Put back after the block what a call sets on a module: its mode, peft's switches, a module's own counters.

    Tensors, submodules and hooks lie in tables of their own, which stay as they are.
    """
    kept = [(module, dict(vars(module))) for module in model.modules()]
    try:
        yield
    finally:
        for module, before in kept:
            now = vars(module)
            if len(now) != len(before) or any(now[name] is not value for name, value in before.items() if name in now):
                for name in [*now]:
                    if name not in before:
                        del now[name]
                now.update(before)


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
    """Switch peft's adapters off in the block. Those that were off stay off after it, and what was frozen stays frozen.

    peft's own context enables every layer when it ends. Layers whose adapters are merged raise RuntimeError: peft would
    take the adapters out of their weights, and put back others.
    """
    layers = [module for module in model.modules() if hasattr(module, "_disable_adapters")]
    if merged := sum(bool(getattr(layer, "merged", False)) for layer in layers):
        raise RuntimeError(f"{merged} layers have their adapters merged: the base cannot be told from them")
    with kept_attributes(model), kept_trainable(model), nullcontext() if layers else model.disable_adapter():
        for layer in layers:
            layer.enable_adapters(False)
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
    """Put the random states back after the block: torch's of CPU and GPU, Python's and numpy's."""
    import torch

    numpy: Any = sys.modules.get("numpy.random")  # a model's forward may draw from either
    python, kept = random.getstate(), None if numpy is None else numpy.get_state()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            random.setstate(python)
            if kept is not None:
                numpy.set_state(kept)


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
