"""Tensors as FSDP2 shards them, and as a trainer and its checkpoints see them. Imports torch; child process only."""

from __future__ import annotations

from typing import Any

import torch


def whole(tensor: Any) -> torch.Tensor:
    """The tensor itself; of a DTensor on one rank, as FSDP2 makes of parameters, the part here, which is all of it."""
    plain: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return plain


def sharded_as(parameter: Any, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as an optimizer must hold it beside this parameter: a DTensor where that is one."""
    if not hasattr(parameter, "to_local"):
        return tensor
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(tensor, parameter.device_mesh, parameter.placements)
