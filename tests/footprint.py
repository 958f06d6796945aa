"""What a training holds, as a snapshot: two are compared before and after something that must change nothing."""

from __future__ import annotations

import importlib
import os
import random
import sys
import threading
from typing import Any

import numpy
import torch

from tunecheck.training.events import Probe, Probes

OPTIMIZERS = importlib.import_module("torch.optim.optimizer")
SETTINGS = (
    torch.is_grad_enabled,
    torch.get_default_dtype,
    torch.are_deterministic_algorithms_enabled,
    torch.is_autocast_enabled,
    torch.get_num_threads,
    os.getcwd,
    threading.active_count,
    lambda: sys.stderr,
    lambda: sys.stdout,
    lambda: len(os.listdir("/proc/self/fd")),
)


def _bits(tensor: torch.Tensor) -> Any:
    """Return what tells one tensor's content from another's."""
    plain = tensor.detach()
    return str(plain.dtype), tuple(plain.shape), bytes(plain.contiguous().flatten().view(torch.uint8).numpy())


def _plain(value: Any) -> Any:
    """Return a copy of containers, one level down, with everything else as its address."""
    if isinstance(value, dict):
        return type(value), {str(key): id(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set):
        return type(value), [id(inner) for inner in value]
    return value if isinstance(value, bool | int | float | str | type(None)) else id(value)


def of_model(model: Any) -> dict[str, Any]:
    """Return every attribute, hook, class and tensor of every module."""
    seen: dict[str, Any] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        seen[f"{name}: class"] = type(module)
        for key, value in vars(module).items():
            seen[f"{name}.{key}"] = _plain(value)
    for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, tensor in tensors:
            seen[f"{kind} {name}"] = id(tensor), tensor.requires_grad, tensor.device, _bits(tensor)
            seen[f"{kind} {name}: gradient"] = None if tensor.grad is None else (id(tensor.grad), _bits(tensor.grad))
            seen[f"{kind} {name}: own"] = {key: id(value) for key, value in vars(tensor).items()}
    return seen


def of_optimizer(optimizer: Any) -> dict[str, Any]:
    """Return groups and states."""
    seen: dict[str, Any] = {"optimizer: hooks": _plain(optimizer._optimizer_step_pre_hooks)}
    for at, group in enumerate(optimizer.param_groups):
        seen[f"group {at}"] = {key: _plain(value) for key, value in group.items()}
    for at, state in enumerate(optimizer.state.values()):
        for key, value in state.items():
            seen[f"state {at} {key}"] = _bits(value) if isinstance(value, torch.Tensor) else value
    return seen


def of_process() -> dict[str, Any]:
    """Return random states and settings that all of a process shares."""
    seen = {f"setting {at}": setting() for at, setting in enumerate(SETTINGS)}
    seen["random states"] = random.getstate(), str(numpy.random.get_state()), _bits(torch.get_rng_state())
    seen["environment"] = dict(os.environ)
    return seen


def of_patches(*more: Any) -> dict[str, Any]:
    """Return the functions that listening may replace: torch's, and those of these classes."""
    owners = (torch.nn.Module, torch.Tensor, torch.optim.Optimizer, torch.optim.AdamW, torch.amp.GradScaler)
    owners += (*more, torch, torch.nn.utils, torch.nn.functional, torch.nn.modules.module, OPTIMIZERS)
    held = {f"{owner.__name__}.{name}": value for owner in owners for name, value in vars(owner).items()}
    seen: dict[str, Any] = {name: (id(value), getattr(value, "__code__", None)) for name, value in held.items()}
    hooks = {name: value for name, value in vars(torch.nn.modules.module).items() if name.startswith("_global_")}
    hooks |= {name: value for name, value in vars(OPTIMIZERS).items() if name.startswith("_global_")}
    return seen | {f"hooks {name}": _plain(value) for name, value in hooks.items()}


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the names of what is not the same."""
    return sorted(
        name for name in before.keys() | after.keys() if name not in before or before[name] != after.get(name, ...)
    )


def watch_probes(monkeypatch: Any) -> tuple[set[tuple[str, str]], dict[tuple[str, str], list[str]]]:
    """Take a snapshot before and after each moment of each probe; return the moments seen and what they changed."""
    seen: set[tuple[str, str]] = set()
    changed: dict[tuple[str, str], list[str]] = {}
    each = Probes._each_in_turn

    def watched(self: Any, probes: Any, moment: str, method: str, session: Any, *args: Any) -> None:
        def snapshot() -> dict[str, Any]:
            return of_model(session.model) | of_optimizer(session.optimizer) | of_process()

        before = snapshot()
        for probe in probes:
            if getattr(type(probe), method) is getattr(Probe, method):
                continue
            each(self, (probe,), moment, method, session, *args)
            after = snapshot()
            seen.add((type(probe).__name__, method))
            if found := differences(before, after):
                changed.setdefault((type(probe).__name__, method), found)
            before = after

    monkeypatch.setattr(Probes, "_each_in_turn", watched)
    return seen, changed
