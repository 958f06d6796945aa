"""Attention masks with a value for each pair of positions, as a script gives them that packs rows itself.

Imports torch; in the watched process only.
"""

from typing import Any, TypeGuard

import torch

from tunecheck.training.data import IGNORED

HIDDEN = -1.0
"""Number below which an additive mask hides a token: it has 0, and the dtype's smallest number or -inf."""


def is_of_pairs(mask: Any, tokens: int) -> TypeGuard[torch.Tensor]:
    """Return whether this is a mask [rows, heads, queries, keys] of rows with this many tokens."""
    return isinstance(mask, torch.Tensor) and mask.ndim == 4 and mask.shape[-2:] == (tokens, tokens)


def visible(mask: torch.Tensor, rows: int) -> torch.Tensor:
    """Return whether a position sees another under its first head's mask: [rows, queries, keys]."""
    allowed = mask if mask.dtype == torch.bool else mask > HIDDEN
    return allowed[:, 0].expand(rows, -1, -1)


def document_positions(
    sees: torch.Tensor, ids: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return 1 where a token is none of padding, and each one's place in its document: both [rows, tokens], as the ids.

    None for a mask under which not each token sees just its document up to itself. Padding is what sees nothing, what
    nothing sees, and a document that repeats one token and of which nothing is learned.
    """
    tokens = torch.arange(sees.shape[-1], device=sees.device)
    begins = sees.int().argmax(dim=-1)
    alone = ~(sees.any(dim=-1) & sees.any(dim=-2))
    documents = (begins[..., None] <= tokens) & (tokens <= tokens[:, None])
    if not bool(((sees == documents) | alone[..., None]).all()):
        return None
    telling = (~alone & ((labels != IGNORED) | (ids != ids.gather(1, begins)))).int()
    counted = torch.zeros_like(telling).scatter_add_(1, begins, telling)  # a document's, where it begins
    real = ~alone & (counted.gather(1, begins) > 0)
    return real.long(), tokens - begins


def counts_up(given: torch.Tensor, places: torch.Tensor, real: torch.Tensor) -> bool:
    """Return whether these positions count up within each document, wherever they begin."""
    begins = torch.arange(places.shape[1], device=places.device) - places
    return bool((((given - given.gather(1, begins)) == places) | (real == 0)).all())
