"""A model that FSDP2 has sharded over the ranks, as probes see it: whole, on every rank.

Imports torch; child process only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tunecheck.training.tensors import whole


class WholeModel:
    """One look at a sharded model."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        from torch.distributed.fsdp import FSDPModule

        self._model, self._trainers = model, optimizer
        self._modules = [module for module in model.modules() if isinstance(module, FSDPModule)]

    def gather(self) -> WholeOptimizer:
        """Gather everything: the model's parameters are plain tensors then. Return the optimizer with these."""
        model = self._model
        self._shards = shards = dict(model.named_parameters())
        self._groups = [group for module in self._modules for group in module._get_fsdp_state()._fsdp_param_groups]
        # FSDP2 has setters for these, and nothing that tells what they were
        self._kept = [{name: getattr(group, name) for name in _SETTINGS} for group in self._groups]
        for module in self._modules:
            module.unshard()
        model.set_requires_gradient_sync(False)
        model.set_reshard_after_backward(False)
        model.set_reshard_after_forward(False)
        self.pairs = {name: (shards[name], p) for name, p in model.named_parameters() if p is not shards[name]}
        """Part of this rank and whole parameter, by name; what is not sharded has none."""
        packed = [module for module in model.modules() if getattr(module, "quant_state", None) is not None]
        if packed:  # DoRA asks a weight before the module's forward pass, in which bitsandbytes recovers its kind
            from bitsandbytes.nn.modules import fix_4bit_weight_quant_state_from_module

            for module in packed:
                fix_4bit_weight_quant_state_from_module(module)
        self._packed = [module.weight for module in packed]
        self._gradients = [p.grad for _, p in self.pairs.values()]
        for part, parameter in self.pairs.values():
            if part.grad is not None:
                parameter.grad = whole(part.grad)
        return WholeOptimizer(self._trainers, {part: p for part, p in self.pairs.values()})

    def parts(self) -> Iterator[tuple[str, str, Any]]:
        """Yield kind, parameter's name and tensor of all that this rank held before."""
        for name, part in self._shards.items():
            yield "parameters", name, part
            if part.grad is not None:
                yield "gradients", name, part.grad
            for value in self._trainers.state.get(part, {}).values():
                if value.dim():  # not the count of steps
                    yield "optimizer state", name, value

    def release(self) -> Any:
        """Leave each rank its part alone. Return the trainer's optimizer."""
        for (_, parameter), gradient in zip(self.pairs.values(), self._gradients, strict=True):
            parameter.grad = gradient
        for weight in self._packed:
            del weight.quant_state
        for group, kept in zip(self._groups, self._kept, strict=True):
            for name, value in kept.items():
                setattr(group, name, value)
        for module in self._modules:
            module.reshard()
        return self._trainers


_SETTINGS = ("reduce_grads", "all_reduce_grads", "reshard_after_backward", "post_forward_mesh_info")
"""Attributes of FSDP2's groups of parameters (torch 2.13) that the setters used here change."""


class WholeOptimizer:
    """An optimizer as if it held whole tensors; what it keeps for one is gathered when that is asked for."""

    def __init__(self, optimizer: Any, by_part: Mapping[Any, Any]) -> None:
        self.optimizer = optimizer
        self.param_groups = [
            {**group, "params": [by_part.get(p, p) for p in group["params"]]} for group in optimizer.param_groups
        ]
        self.state = _WholeState({by_part.get(p, p): held for p, held in optimizer.state.items()})

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optimizer, name)


class _WholeState(Mapping[Any, dict[str, Any]]):
    """Parameter to its state, whole."""

    def __init__(self, held: dict[Any, dict[str, Any]]) -> None:
        self._held = held

    def __getitem__(self, parameter: Any) -> dict[str, Any]:
        return {key: whole(value) for key, value in self._held[parameter].items()}

    def __iter__(self) -> Iterator[Any]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)
