"""The oracles' rows side by side: none is lost, none is cut, and their losses are those of each row alone."""

from __future__ import annotations

import pytest
import torch

from tunecheck.probes.oracle import _documents
from tunecheck.probes.reference.forwards import TOGETHER_TOKENS, side_by_side
from tunecheck.training.data import IGNORED, Batch


def row(length, start=1):
    """Token ids and labels, the first two unsupervised."""
    ids = torch.arange(start, start + length)
    return ids, torch.cat([torch.full((2,), IGNORED), ids[2:]])


@pytest.mark.parametrize("lengths", [[5, 9, 7], [TOGETHER_TOKENS + 1, 3], [200, 100, 100, 60], [4]])
def test_every_row_comes_once_and_whole(lengths):
    """Padded with what is not supervised, as many together as there is room for; a row that is longer comes alone."""
    rows = [row(length, start=1000 * at + 1) for at, length in enumerate(lengths)]
    seen = []
    for ids, labels in side_by_side(rows):
        assert ids.shape == labels.shape
        assert ids.numel() <= TOGETHER_TOKENS or len(ids) == 1
        seen += [(i[i > 0].tolist(), label[i > 0].tolist()) for i, label in zip(ids, labels, strict=True)]
        assert all((label[i == 0] == IGNORED).all() for i, label in zip(ids, labels, strict=True))

    assert sorted(seen) == sorted((ids.tolist(), labels.tolist()) for ids, labels in rows)


def test_a_micro_batch_of_the_training_fits_whatever_its_size():
    """What the training has room for, its oracle has too."""
    rows = [row(300), row(300)]
    assert len(list(side_by_side(rows))) == 2
    assert len(list(side_by_side(rows, tokens=600))) == 1


def test_the_caller_keeps_its_rows():
    """They are sorted in a copy."""
    rows = [row(3), row(8)]
    list(side_by_side(rows))
    assert [len(ids) for ids, _ in rows] == [3, 8]


@pytest.mark.parametrize(
    ("positions", "lengths"),
    [
        ([0, 1, 2, 0, 1, 2], [3, 3]),
        ([5, 6, 7, 0, 1, 2], [3, 3]),
        ([0, 0, 0, 0, 0, 0], [6]),
        ([3, 4, 5, 6, 7, 8], [6]),
    ],
    ids=["two documents", "the end of one before", "no positions", "an offset"],
)
def test_documents_begin_where_positions_do(positions, lengths):
    """Positions that are none make no documents of one token each, whose loss would be the mean of nothing."""
    ids, labels = row(6)
    batch = Batch(
        keys=("?",),
        input_ids=ids[None],
        attention_mask=torch.ones(1, 6, dtype=torch.long),
        labels=labels[None],
        supervised_tokens=4,
        tokens=6,
        position_ids=torch.tensor([positions]),
    )
    assert [len(document) for document, _ in _documents([batch])] == lengths
