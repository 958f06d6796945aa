"""Tensors as FSDP2 shards them, a whole model as probes see it, and a device's time. Imports torch; child only."""

import time
from collections import UserDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as distributed

from tunecheck.models.layer_names import decoder_layers


def is_encoded(tensor: Any) -> bool:
    """Return whether this is of a class that stores numbers otherwise, as torchao's, and may have few operators."""
    return type(tensor).dequantize is not torch.Tensor.dequantize


def whole(tensor: Any) -> torch.Tensor:
    """Return the tensor, dense and decoded; of a DTensor all of it: every rank must ask, and one alone gets no copy."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local() if tensor.device_mesh.size() == 1 else tensor.full_tensor()
    elif is_encoded(tensor):
        tensor = tensor.dequantize()
    found: torch.Tensor = tensor if tensor.layout is torch.strided else tensor.to_dense()
    return found


def moment(device: torch.device) -> Any:
    """Return this moment; on a GPU an event, which comes when the work that it has by now is done."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def seconds_between(begin: Any, end: Any) -> float:
    """Return the time between two moments; waits for the second."""
    if isinstance(end, float):
        return end - float(begin)
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def own_parameters(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the parameters that this module holds itself, however its class overrides `parameters`."""
    return [parameter for parameter in module._parameters.values() if parameter is not None]


def learning(model: Any) -> list[tuple[str, Any]]:
    """Return the parameters that require a gradient, by name; those alone that the model's own `parameters` offers.

    A class may leave a part out of that on purpose, as a captioner does its frozen language model.
    """
    offered = {id(parameter) for parameter in model.parameters()}
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad and id(p) in offered]


def undifferentiated(model: Any) -> frozenset[str]:
    """Return the tensors of modules that transformers' own classes compute without gradients.

    What chooses the tokens of a sparse attention, as DeepSeek V3.2's indexer, is one.
    """
    found = [(name, module) for name, module in model.named_modules() if _computes_without_gradients(type(module))]
    return frozenset(f"{name}.{tensor}" for name, module in found for tensor, _ in module.named_parameters())


def _computes_without_gradients(kind: type) -> bool:
    forward = getattr(kind, "forward", None) if kind.__module__.startswith("transformers.") else None
    while forward is not None:  # what torch.no_grad() decorates holds it
        cells = getattr(forward, "__closure__", None) or ()
        if any(isinstance(getattr(cell.cell_contents, "__self__", None), torch.no_grad) for cell in cells):
            return True
        forward = getattr(forward, "__wrapped__", None)
    return False


def gradients_of(parameters: Iterable[Any]) -> list[torch.Tensor]:
    """Return the gradient of each parameter, whole; where there is none, zeros."""
    return [torch.zeros_like(whole(p)) if p.grad is None else whole(p.grad) for p in parameters]


def sharded_as(parameter: Any, tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole tensor as an optimizer must hold it beside this parameter: a DTensor where that is one."""
    if not hasattr(parameter, "to_local"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    # every rank has read the file: each takes its part, and nothing is sent
    return distribute_tensor(tensor, parameter.device_mesh, parameter.placements, src_data_rank=None)


def shard(model: Any, device_type: str, **policy: Any) -> None:
    """Shard the parameters: a group for each decoder layer, one for the rest. Call it before the optimizer is made."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device_type, (distributed.get_world_size(),))
    for layer in decoder_layers(model, at_least=1):
        fully_shard(layer, mesh=mesh, **policy)
    # left gathered after a forward pass, as the root is by default, the head would not be the optimizer's tensor
    fully_shard(model, mesh=mesh, reshard_after_forward=True, **policy)


class WholeModel:
    """One look at a sharded model."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        from torch.distributed.fsdp import FSDPModule

        self._model, self._trainers, self._undo = model, optimizer, ExitStack()
        self._modules = [module for module in model.modules() if isinstance(module, FSDPModule)]

    def gather(self) -> "WholeOptimizer":
        """Gather everything: the model's parameters are plain tensors then. Return the optimizer with these."""
        model, undo = self._model, self._undo
        self._shards = shards = dict(model.named_parameters())
        for module in reversed(self._modules):
            undo.callback(module.reshard)
        for group in [group for module in self._modules for group in module._get_fsdp_state()._fsdp_param_groups]:
            for name in _SETTINGS:  # FSDP2 has setters for these, and nothing that tells what they were
                undo.callback(setattr, group, name, getattr(group, name))
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
                undo.callback(delattr, module.weight, "quant_state")
        for part, parameter in self.pairs.values():
            undo.callback(setattr, parameter, "grad", parameter.grad)
            if part.grad is not None:
                parameter.grad = whole(part.grad)
        return WholeOptimizer(self._trainers, {part: p for part, p in self.pairs.values()})

    def parts(self) -> Iterator[tuple[str, str, Any]]:
        """Yield kind, parameter's name and tensor of all that this rank held before."""
        for name, part in self._shards.items():
            yield "parameters", name, part
            if part.grad is not None:
                yield "gradients", name, part.grad
            values = self._trainers.state.get(part, {}).values()
            yield from (("optimizer state", name, value) for value in values if value.dim())  # not the count of steps

    def release(self) -> Any:
        """Leave each rank its part alone. Return the trainer's optimizer."""
        self._undo.close()
        return self._trainers


_SETTINGS = ("reduce_grads", "all_reduce_grads", "reshard_after_backward", "post_forward_mesh_info")
"""Attributes of FSDP2's groups of parameters (torch 2.13) that the setters used here change."""


class WholeOptimizer:
    """An optimizer as if it held whole tensors; what it keeps for one is gathered when that is asked for."""

    def __init__(self, optimizer: Any, by_part: Mapping[Any, Any]) -> None:
        self.optimizer, groups = optimizer, optimizer.param_groups
        self.param_groups = [{**group, "params": [by_part.get(p, p) for p in group["params"]]} for group in groups]
        self.state = _WholeState({by_part.get(p, p): held for p, held in optimizer.state.items()})

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optimizer, name)


class _WholeState(UserDict[Any, dict[str, Any]]):
    def __getitem__(self, parameter: Any) -> dict[str, Any]:
        return {key: whole(value) for key, value in super().__getitem__(parameter).items()}
