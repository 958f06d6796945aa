"""A model whose arithmetic is fp32 for a moment: a difference of two losses is below what 16 bit rounds.

Imports torch; child process only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch

HALVES = (torch.bfloat16, torch.float16)


@contextmanager
def in_fp32(model: Any) -> Iterator[None]:
    """Compute in fp32 in this context: 16-bit tensors are widened in place, 4-bit linears multiply in fp32.

    Parameters stay the same objects, with their hooks; afterwards each has its own storage again.
    """
    kept = [(tensor, tensor.data) for tensor in chain(model.parameters(), model.buffers()) if tensor.dtype in HALVES]
    linears = [module for module in model.modules() if getattr(module, "compute_dtype", None) is not None]
    dtypes = [module.compute_dtype for module in linears]
    try:
        for tensor, data in kept:
            tensor.data = data.float()
        for linear in linears:
            linear.compute_dtype = torch.float32
        yield
    finally:
        for tensor, data in kept:
            tensor.data = data
        for linear, dtype in zip(linears, dtypes, strict=True):
            linear.compute_dtype = dtype


def widened_bytes(model: Any) -> int:
    """Return the bytes that `in_fp32` takes while it lasts."""
    tensors = chain(model.parameters(), model.buffers())
    return sum(4 * tensor.numel() for tensor in tensors if tensor.dtype in HALVES)
