"""Tensors as FSDP2 shards them, and as a trainer and its checkpoints see them. Imports torch; child process only."""

from __future__ import annotations

from typing import Any

import torch

from tunecheck.models.layer_names import decoder_layers


def whole(tensor: Any) -> torch.Tensor:
    """Return the tensor itself; of a DTensor, as FSDP2 makes of parameters, all of it: every rank must ask.

    On one rank that is the part here, and no copy. A sparse tensor, as the gradient of a table may be, is made dense.
    """
    if not hasattr(tensor, "to_local"):
        plain: torch.Tensor = tensor if tensor.layout is torch.strided else tensor.to_dense()
        return plain
    gathered: torch.Tensor = tensor.to_local() if tensor.device_mesh.size() == 1 else tensor.full_tensor()
    return gathered


def sharded_as(parameter: Any, tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole tensor as an optimizer must hold it beside this parameter: a DTensor where that is one."""
    if not hasattr(parameter, "to_local"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    # every rank has read the file: each takes its part, and nothing is sent
    return distribute_tensor(tensor, parameter.device_mesh, parameter.placements, src_data_rank=None)


def shard(model: Any, device_type: str, **policy: Any) -> None:
    """Make the parameters DTensors of which each rank holds a part: a group for each decoder layer, one for the rest.

    Call it before the optimizer is made.
    """
    import torch.distributed as distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device_type, (distributed.get_world_size(),))
    for layer in decoder_layers(model, at_least=1):
        fully_shard(layer, mesh=mesh, **policy)
    # left gathered after a forward pass, as the root is by default, the head would not be the optimizer's tensor
    fully_shard(model, mesh=mesh, reshard_after_forward=True, **policy)
