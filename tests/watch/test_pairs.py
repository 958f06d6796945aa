"""Pairs of answers in what a Trainer gives its model."""

from __future__ import annotations

import pytest
import torch

from suite.watch.pairs import pairs_given

CHOSEN = torch.tensor([[1, 2, 3], [1, 4, 5]])
REJECTED = torch.tensor([[1, 2, 3], [1, 5, 4]])
APART = {"chosen_input_ids": CHOSEN, "rejected_input_ids": REJECTED}
JOINED = {"input_ids": torch.cat([CHOSEN, REJECTED])}


@pytest.mark.parametrize(
    ("given", "columns"),
    [(APART, ()), (JOINED, ("prompt_ids", "chosen_ids", "rejected_ids")), (JOINED, ("chosen", "rejected"))],
    ids=["apart", "tokens", "text"],
)
def test_pairs_are_counted(given, columns):
    """With keys of their own, or joined as TRL's collators do."""
    seen = pairs_given(3, [given, given], columns, 2)

    assert (seen.step, seen.pairs, seen.alike) == (3, 4, 2)


@pytest.mark.parametrize(
    ("given", "columns", "rows"),
    [
        (JOINED, ("input_ids", "labels"), 2),
        (JOINED, ("chosen_score", "rejected_score"), 2),
        (JOINED, ("chosen", "rejected"), 4),
        (JOINED, ("chosen", "rejected"), None),
        ({}, ("chosen", "rejected"), 2),
    ],
    ids=["no pairs", "scores", "not joined", "nobody knows", "no tokens"],
)
def test_where_nothing_declares_pairs_there_are_none(given, columns, rows):
    """A row may come twice for other reasons."""
    assert pairs_given(0, [given], columns, rows) is None


def test_answers_of_other_lengths_are_not_alike():
    """However they are padded."""
    seen = pairs_given(0, [{"chosen_input_ids": CHOSEN, "rejected_input_ids": REJECTED[:, :2]}], (), 2)

    assert (seen.pairs, seen.alike) == (2, 0)
