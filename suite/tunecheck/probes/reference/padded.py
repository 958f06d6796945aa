"""Where rows of tokens hold padding: as a mask tells it, the token that a model names, or what all rows end in."""

from collections.abc import Sequence
from typing import Any

import torch

from tunecheck.probes.reference.given import special_tokens

FEWEST_FILLED = 4
"""Rows, and tokens of each, by which a token is seen to fill rows up."""


def up_to_last(places: torch.Tensor) -> torch.Tensor:
    """Return the positions at and before the last one of these in their row."""
    return places.flip(1).cumsum(dim=1).flip(1) > 0


def tokens(read: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Return where rows hold tokens, without those that end in one token again and again: it may fill them up."""
    varied = up_to_last(read != read[:, -1:])
    varied[:, -1:] |= read[:, -1:] != read.roll(1, dims=1)[:, -1:]
    return varied if mask is None or mask.shape != read.shape else varied & (mask != 0)


def mask_of_decoder(model: Any, read: torch.Tensor, pads: Sequence[int]) -> torch.Tensor | None:
    """Return where a decoder without a mask reads tokens, rather than the padding of its model or of its tokenizer.

    None where nobody knows. It starts with a token that may be that of padding. Behind padding it predicts padding.
    """
    if not (named := {*pads, *special_tokens(model.config, "pad")} - special_tokens(model.config, "eos")):
        return None
    real = ~torch.isin(read, torch.tensor([*named], device=read.device))
    real[:, 0] = True
    return real


def mask_by_ends(model: Any, read: torch.Tensor, pads: Sequence[int] = ()) -> torch.Tensor | None:
    """Return where rows without a mask hold tokens, rather than padding; None where they are not seen to be padded.

    They are where at least half of them end in more or less of the model's padding, of the tokenizer's (`pads`), or of
    its end: the first one is an end.
    """
    named = [*special_tokens(config := getattr(model, "config", None), "pad"), *pads] or special_tokens(config, "eos")
    masks = (mask_by(pad, read) for pad in dict.fromkeys(named) if read.ndim == 2)
    return next((mask for mask in masks if mask is not None), None)


def mask_by(pad: int, read: torch.Tensor) -> torch.Tensor | None:
    """Return the same for this token of padding."""
    real = up_to_last(read != pad)
    real[:, 1:] |= real[:, :-1].clone()
    behind = read.shape[1] - real.sum(dim=1)
    padded = bool(behind.max() > 1) and bool((behind != behind[:1]).any()) and int((behind > 0).sum()) * 2 >= len(read)
    return real if padded else None


def outside(mask: torch.Tensor) -> torch.Tensor:
    """Return the positions outside of a row's tokens, but for the one before: the first token is predicted there."""
    real = mask != 0
    begun = real.cumsum(dim=1) > 0
    begun[:, :-1] |= begun[:, 1:].clone()
    return ~begun | ~up_to_last(real)


def filled(read: torch.Tensor) -> torch.Tensor | None:
    """Return where rows hold tokens, where they are seen to be filled up at one side; None in others."""
    for ways in ((), (1,)):
        real = None if (fill := fill_of(turned := read.flip(ways))) is None else mask_by(fill, turned)
        if real is not None:
            return real.flip(ways)
    return None


def fill_of(read: torch.Tensor) -> int | None:
    """Return the token that rows seem to be filled up with to one length; None where they do not.

    Most rows end in more than one of it, and no row of several holds it anywhere else but in all rows' first place.
    """
    if read.ndim != 2 or read.shape[0] < FEWEST_FILLED or read.shape[1] < FEWEST_FILLED:
        return None
    last = int(read[:, -1].mode().values)
    fill = read == last
    fill[:, 0] &= not bool(fill[:, 0].all())
    run = fill.flip(1).int().cumprod(dim=1).sum(dim=1)
    return last if (run == fill.sum(dim=1)).all() and 2 * int((run > 1).sum()) >= len(read) else None


def used(gradient: torch.Tensor) -> torch.Tensor:
    """Return where a gradient is not 0, [rows, positions], without another tensor of its size."""
    return (gradient.detach().amax(dim=-1) != 0) | (gradient.detach().amin(dim=-1) != 0)
