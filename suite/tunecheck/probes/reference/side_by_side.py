"""Rows of an oracle, side by side in few forwards: one costs 0.25 s on a CPU, however few tokens it has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.nn.utils.rnn import pad_sequence

from tunecheck.training.data import IGNORED

TOGETHER_TOKENS = 256
"""Positions of one forward, where the training's own micro-batches do not take more."""

IdsAndLabels = tuple[torch.Tensor, torch.Tensor]


def side_by_side(rows: Sequence[IdsAndLabels], tokens: int = 0) -> Iterator[IdsAndLabels]:
    """All rows, longest first, as [rows, positions] of token ids and of labels with at most max(256, tokens) positions.

    A longer row comes alone. They need no mask: padding stands on the right, where a causal model's tokens do not look.
    """
    room = max(TOGETHER_TOKENS, tokens)
    waiting = sorted(rows, key=lambda row: -len(row[0]))
    while waiting:
        count = max(1, room // len(waiting[0][0]))
        ids, labels = map(list, zip(*waiting[:count], strict=True))
        del waiting[:count]
        yield pad_sequence(ids, batch_first=True), pad_sequence(labels, batch_first=True, padding_value=IGNORED)
