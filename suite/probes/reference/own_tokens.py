"""Whether what a model of the script's own returns at a position is computed of the token there, and of no later one.

Where it is, and the same token is the target, the model has only to copy. An autoencoder sees all tokens, and a model
that shifts within itself sees the earlier ones alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from suite.training.restore import model_mode

LEAST = 1e-3
"""Of the largest score, by which scores change that depend on a token; those that do not differ by rounding."""


def tokens_and_scores(args: Any, given: Any, out: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the tokens, [rows, positions], that a module is called with, and the scores over them that it returns.

    None where it takes or returns something else.
    """
    read = next((value for value in (*args, *given.values()) if _are_tokens(value)), None)
    parts = out.values() if isinstance(out, dict) else out if isinstance(out, tuple | list) else (out,)
    scores = next((part for part in parts if isinstance(part, torch.Tensor) and part.ndim == 3), None)
    if read is None or scores is None or scores.shape[:2] != read.shape or not scores.is_floating_point():
        return None
    return (read, scores) if scores.shape[-1] > int(read.max()) else None


def copies(model: Any, call: Callable[[torch.Tensor], torch.Tensor | None], read: torch.Tensor) -> bool:
    """Return whether scores depend on the token at their position, and not on a later one.

    `call` takes tokens and returns the scores, or None; it is called in eval mode without gradients, and buffers are
    put back.
    """
    at = read.shape[1] // 2
    changed = read.clone()
    changed[:, at] = torch.where(read[:, at] > 0, read[:, at] - 1, read[:, at] + 1)
    with model_mode(model, False), torch.no_grad(), _kept_buffers(model):
        before, after = call(read), call(changed)
    if before is None or after is None or before.shape != after.shape:
        return False
    moved = (after.float() - before.float()).abs().amax(dim=(0, 2)) / before.float().abs().max()
    return bool(at) and float(moved[:at].max()) <= LEAST < float(moved[at])


def _are_tokens(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim == 2 and value.dtype in (torch.int64, torch.int32)


@contextmanager
def _kept_buffers(model: Any) -> Iterator[None]:
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, value in kept:
            buffer.copy_(value)
