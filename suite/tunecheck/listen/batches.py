"""Micro-batches in the form that probes know, with the attention masks of packed rows. Imports torch."""

import hashlib
from collections.abc import Mapping
from itertools import combinations
from typing import Any, TypeGuard

import torch

from tunecheck.core.errors import Unsupported
from tunecheck.listen.loaders import parts_of
from tunecheck.training.data import IGNORED, Batch


def is_of_pairs(mask: Any, tokens: int) -> TypeGuard[torch.Tensor]:
    """Return whether this is a mask [rows, heads, queries, keys] of rows with this many tokens."""
    return isinstance(mask, torch.Tensor) and mask.ndim == 4 and mask.shape[-2:] == (tokens, tokens)


def document_positions(
    sees: torch.Tensor, ids: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return a mask of real tokens, and each token's place in its document: both [rows, tokens].

    Return None if a token sees anything but its document up to itself. Padding sees nothing, or is unseen, or is an
    unsupervised document that repeats one token.
    """
    tokens = torch.arange(sees.shape[-1], device=sees.device)
    begins = sees.int().argmax(dim=-1)
    alone = ~(sees.any(dim=-1) & sees.any(dim=-2))
    documents = (begins[..., None] <= tokens) & (tokens <= tokens[:, None])
    if not bool(((sees == documents) | alone[..., None]).all()):
        return None
    telling = (~alone & ((labels != IGNORED) | (ids != ids.gather(1, begins)))).int()
    counted = torch.zeros_like(telling).scatter_add_(1, begins, telling)  # a document's, where it begins
    return (~alone & (counted.gather(1, begins) > 0)).long(), tokens - begins


def counts_up(given: torch.Tensor, places: torch.Tensor, real: torch.Tensor) -> bool:
    """Return whether these positions count up within each document, wherever they begin."""
    begins = torch.arange(places.shape[1], device=places.device) - places
    return bool((((given - given.gather(1, begins)) == places) | (real == 0)).all())


def batch_of(inputs: Any, device: torch.device) -> Batch:
    """Return what the model is given, in the form that probes know. Raises Unsupported where it is given no tokens."""
    if not isinstance(inputs.get("input_ids"), torch.Tensor):
        raise Unsupported("the model is called without input_ids, so its rows are unknown")
    ids, labels = inputs["input_ids"].to(device), inputs["labels"].to(device)
    given, sees = inputs.get("attention_mask"), None
    # where rows are packed a mask may number their documents
    mask = (given != 0).long().to(device) if getattr(given, "shape", None) == ids.shape else torch.ones_like(ids)
    if (positions := inputs.get("position_ids")) is not None:  # those of images have three of them a token
        positions = positions.to(device).expand_as(ids) if positions.ndim <= ids.ndim else None
    if is_of_pairs(given, ids.shape[1]):
        # an additive mask has 0, and the dtype's smallest number or -inf to hide a token
        allowed = given if given.dtype == torch.bool else given > -1.0
        seen = allowed[:, 0].expand(len(ids), -1, -1).to(device)  # by the first head
        if (found := document_positions(seen, ids, labels)) is None:
            mask, positions, sees = seen.any(dim=1).long(), None, seen
        else:
            mask, places = found
            positions = places if positions is None or counts_up(positions, places, mask) else positions
    return Batch.of(ids, labels, mask, position_ids=positions, sees=sees)


def named_inputs(inputs: Any) -> Mapping[str, Any]:
    """Return a micro-batch's inputs by name: a collator may leave the rows as they are, as TRL's for GRPO does."""
    return inputs if isinstance(inputs, Mapping) else {"rows": inputs}


def inputs_of(args: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Return what a model is called with; transformers' first argument are the tokens."""
    return {**{"input_ids" if at == 0 else f"argument {at}": value for at, value in enumerate(args)}, **given}


def unknown_batch(inputs: Any, device: torch.device) -> Batch:
    """Return a micro-batch of which the rows and tokens are counted alone, for a model that is given anything else."""
    tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    labels, mask = tensors.get("labels"), tensors.get("attention_mask")
    several = (value for value in inputs.values() if hasattr(value, "__len__") and getattr(value, "ndim", True))
    rows = next(map(len, several), 1)
    nothing = torch.zeros(rows, 1, dtype=torch.long, device=device)
    content = list(parts_of(inputs))
    # of inputs of token ids, of which a model that learns of pairs has two, the first two that are equal
    ids = [(name, value) for name, value in tensors.items() if "input_ids" in name]
    pairs = ((one, other) for (one, a), (other, b) in combinations(ids, 2) if a.shape == b.shape and torch.equal(a, b))
    return Batch(
        keys=("?",) * rows,
        input_ids=nothing,
        attention_mask=nothing + 1,
        labels=nothing + IGNORED,
        supervised_tokens=0 if labels is None else int((labels != IGNORED).sum()),
        tokens=rows if mask is None else int(mask.sum()),
        content=hashlib.sha256(repr(content).encode()).hexdigest()[:12],
        opaque=any(part is ... for part in content),
        equal=next(pairs, ()),
    )
