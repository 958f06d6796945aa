"""Whether what a model of the script's own returns at a position is computed of the token there, and of later ones.

Where it is of the token there and of no later one, and that token is the target, the model has only to copy. An
autoencoder sees all tokens, and a model that shifts within itself sees the earlier ones alone. Where the next token is
the target, no later one may be seen.
"""

from collections.abc import Callable
from typing import Any

import torch

from tunecheck.training.restore import model_mode, unprinted

LEAST = 1e-3
"""Of the largest score, by which scores change that depend on a token; those that do not differ by rounding."""
LEAST_AHEAD = 1e-5
"""The same of a token that is not to be seen at all: 0 in a causal model, of whatever precision."""
MARGIN = 10.0
"""Over what is known to be rounding."""
FEWEST_FILLED = 4
"""Rows, and tokens of each, by which a token is seen to fill rows up."""


def tokens_and_scores(args: Any, given: Any, out: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the tokens, [rows, positions], that a module is called with, and the scores over them that it returns.

    Scores may come flat, [rows * positions, vocabulary]. None where it takes or returns something else.
    """
    tensors = [value for value in (*args, *given.values()) if isinstance(value, torch.Tensor)]
    read = next((value for value in tensors if value.ndim == 2 and value.dtype in (torch.int64, torch.int32)), None)
    if read is None or not read.numel():
        return None
    parts = out.values() if isinstance(out, dict) else out if isinstance(out, tuple | list) else (out,)
    shapes = read.shape, (read.numel(),)
    scores = [part for part in parts if isinstance(part, torch.Tensor) and part.shape[:-1] in shapes]
    fitting = (part for part in scores if part.is_floating_point() and part.shape[-1] > int(read.max()))
    found = next(fitting, None)
    return None if found is None else (read, found)


def copies(model: Any, call: Callable[[torch.Tensor], torch.Tensor | None], read: torch.Tensor) -> bool:
    """Return whether scores depend on the token at their position, and not on a later one.

    `call` takes tokens and returns the scores, or None; it is called in eval mode without gradients, and buffers are
    put back.
    """
    at = read.shape[1] // 2
    if (moved := _moved(model, call, read, [_other(read, at)])) is None:
        return False
    most = moved[0].amax(dim=0)
    return bool(at) and float(most[:at].max()) <= LEAST < float(most[at])


def rows_that_see(
    model: Any, call: Callable[[torch.Tensor], torch.Tensor | None], read: torch.Tensor, at: int
) -> torch.Tensor | None:
    """Return of every second row whether its scores at this position depend on the token behind it.

    `call` as for `copies`. None where scores cannot be compared: those that differ from call to call. What the rows
    between differ by, whose tokens are the same, is rounding, as of experts that other tokens are sent to.
    """
    some = read.clone()
    some[::2] = _other(read, at + 1)[::2]
    if (moved := _moved(model, call, read, [read, some])) is None:
        return None
    by_itself, by_tokens = moved
    rounding = by_tokens[1::2].max() if len(read) > 1 else by_itself.max() + LEAST / MARGIN
    seeing = by_tokens[::2, at] > torch.clamp(MARGIN * rounding, min=LEAST_AHEAD)
    return seeing if float(by_itself.max()) <= LEAST_AHEAD else None


def _other(read: torch.Tensor, at: int) -> torch.Tensor:
    """Return the rows with another token at this position."""
    changed = read.clone()
    changed[:, at] = torch.where(read[:, at] > 0, read[:, at] - 1, read[:, at] + 1)
    return changed


def _moved(
    model: Any, call: Callable[[torch.Tensor], torch.Tensor | None], read: torch.Tensor, others: list[torch.Tensor]
) -> list[torch.Tensor] | None:
    """Return how far the scores of these rows are from those of `read`, of the largest: [rows, positions] each."""
    with model_mode(model, False), torch.no_grad(), unprinted():
        before, *after = [call(tokens) for tokens in (read, *others)]
    if before is None or any(scores is None or scores.shape != before.shape for scores in after):
        return None
    largest = before.float().abs().max()
    return [(scores.float() - before.float()).abs().amax(dim=2) / largest for scores in after if scores is not None]


def fill_of(read: torch.Tensor) -> int | None:
    """Return the token that rows seem to be filled up with to one length; None where they do not.

    Most rows end in more than one of it, and no row of several holds it anywhere else but in all rows' first place.
    """
    if read.shape[0] < FEWEST_FILLED or read.shape[1] < FEWEST_FILLED:
        return None
    last = int(read[:, -1].mode().values)
    fill = read == last
    fill[:, 0] &= not bool(fill[:, 0].all())
    run = fill.flip(1).int().cumprod(dim=1).sum(dim=1)
    apart = bool((run == fill.sum(dim=1)).all())
    return last if apart and 2 * int((run > 1).sum()) >= len(read) else None
