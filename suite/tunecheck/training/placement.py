"""Where the parts of a training on a GPU lie: what the backward pass needs, or all that learns, in the CPU's memory.

Neither changes what is computed. docs/fallback.md says what is not offered, and why.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as distributed

from tunecheck.config.schema import Run
from tunecheck.training.load import resolve_device
from tunecheck.training.ranks import BACKEND
from tunecheck.training.session import Session
from tunecheck.training.tensors import shard


def home(run: Run, device: torch.device) -> torch.device:
    """Where the weights are loaded to: offloaded ones never all lie on the device at once."""
    return torch.device("cpu") if run.training.offload == "parameters" else device


def offload_parameters(model: Any, device: torch.device) -> None:
    """Parameters, gradients and so the optimizer's state lie on the CPU; a layer is on the device while it is used.

    FSDP2 makes DTensors of the parameters, each whole on this rank. Call it before the optimizer is made.
    """
    from torch.distributed.fsdp import CPUOffloadPolicy, register_fsdp_forward_method

    if not distributed.is_initialized():  # one rank needs no network: the store is this process's own
        store = distributed.HashStore()  # type: ignore[attr-defined]
        distributed.init_process_group(BACKEND[device.type], store=store, rank=0, world_size=1)
    shard(model, device.type, offload_policy=CPUOffloadPolicy(pin_memory=device.type == "cuda"))
    model.as_forward = lambda function: function()
    register_fsdp_forward_method(model, "as_forward")


def as_forward(model: Any, function: Callable[[], torch.Tensor]) -> torch.Tensor:
    """What the function returns, which calls parts of the model; for FSDP2 that is one forward pass of the whole."""
    gathered: Callable[[Any], torch.Tensor] = getattr(model, "as_forward", lambda plain: plain())
    return gathered(function)


def activations_on_cpu(model: Any) -> AbstractContextManager[None]:
    """What autograd saves in this context lies on the CPU until the backward pass asks for it, weights left out.

    torch's save_on_cpu would copy weights for every layer, and make slices contiguous: last bits could then differ.
    """
    weights = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}

    def pack(tensor: torch.Tensor) -> tuple[torch.device | None, torch.Tensor]:
        expanded = any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.size(), strict=True))
        if expanded or tensor.untyped_storage()._cdata in weights:
            return None, tensor
        return tensor.device, _to_host(tensor)

    def unpack(packed: tuple[torch.device | None, torch.Tensor]) -> torch.Tensor:
        device, tensor = packed
        return tensor if device is None else _copied(tensor, device)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def _to_host(tensor: torch.Tensor) -> torch.Tensor:  # replaced where memory is predicted
    return _copied(tensor, torch.device("cpu"), pinned=tensor.is_cuda)


def _copied(tensor: torch.Tensor, device: torch.device, *, pinned: bool = False) -> torch.Tensor:
    """The same numbers with the same strides on this device."""
    shape = tensor.size(), tensor.stride()
    copy = torch.empty_strided(*shape, dtype=tensor.dtype, device=device, pin_memory=pinned)
    return copy.copy_(tensor, non_blocking=device.type == "cuda")


@contextmanager
def where_evaluated(session: Session) -> Iterator[None]:
    """Put the session where the run evaluates, then back, to the last bit. Raises Unsupported without such a device."""
    trains_on = session.device
    if session.run.evaluation.device == "training":
        yield
        return
    there = resolve_device(session.run.evaluation.device)
    try:
        _move(session, there)
        yield
    finally:
        _move(session, trains_on)
        if there.type == "cuda":
            torch.cuda.empty_cache()


def _move(session: Session, device: torch.device) -> None:
    session.model.to(device)  # in place: the optimizer's parameters stay the model's
    session.device = session.batches.device = device
