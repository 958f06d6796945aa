"""A model whose arithmetic is fp32 for a moment: a difference of two losses is below what 16 bit rounds.

Imports torch; child process only.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any

import torch

from tunecheck.training.restore import having

HALVES = (torch.bfloat16, torch.float16)
WIDENED_BYTES = 1 << 30
"""Largest part of a base that is computed with in fp32 for a moment: a 4-bit 7B model's embedding and head."""


@contextmanager
def in_fp32(model: Any) -> Iterator[dict[torch.Tensor, torch.Tensor]]:
    """Compute in fp32 in this context: stand-ins take the places of 16-bit tensors, 4-bit linears multiply in fp32.

    Yield the stand-in by tensor. The tensors themselves are left alone: one whose data has another dtype, were it for a
    moment, gets a new gradient accumulator, and DDP, which hooked the old one, averages its gradient no more.
    """
    wide: dict[torch.Tensor, torch.Tensor] = {}
    places = [place for module in model.modules() for place in (module._parameters, module._buffers)]
    kept = [(place, name, t) for place in places for name, t in place.items() if t is not None and t.dtype in HALVES]
    linears = [module for module in model.modules() if getattr(module, "compute_dtype", None) is not None]
    with having((linear, "compute_dtype", torch.float32) for linear in linears), ExitStack() as stack:
        for place, name, tensor in kept:
            if tensor not in wide:  # a tied one has several places
                wide[tensor] = data = tensor.detach().float()
                if isinstance(tensor, torch.nn.Parameter):
                    wide[tensor] = torch.nn.Parameter(data, tensor.requires_grad)
            stack.callback(place.update, {name: tensor})
            place[name] = wide[tensor]
        yield wide


def widened_bytes(model: Any) -> int:
    """Return the bytes that `in_fp32` takes while it lasts."""
    tensors = chain(model.parameters(), model.buffers())
    return sum(4 * tensor.numel() for tensor in tensors if tensor.dtype in HALVES)
