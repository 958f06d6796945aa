"""Pairs of answers in what a Trainer gives its model."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from suite.watch.pairs import declares_pairs, pairs_given

CHOSEN = torch.tensor([[1, 2, 3], [1, 4, 5]])
REJECTED = torch.tensor([[1, 2, 3], [1, 5, 4]])
APART = {"chosen_input_ids": CHOSEN, "rejected_input_ids": REJECTED}
JOINED = {"input_ids": torch.cat([CHOSEN, REJECTED])}


@pytest.mark.parametrize("given", [APART, JOINED], ids=["apart", "joined"])
def test_pairs_are_counted(given):
    """With keys of their own, or joined as TRL's collators do."""
    seen = pairs_given(3, [given, given], 2)

    assert (seen.step, seen.pairs, seen.alike) == (3, 4, 2)


@pytest.mark.parametrize(
    ("given", "rows"), [(JOINED, 4), (JOINED, None), ({}, 2)], ids=["not joined", "nobody knows", "no tokens"]
)
def test_what_is_not_joined_has_no_pairs(given, rows):
    """An epoch's last micro-batch may have fewer rows."""
    assert pairs_given(0, [given], rows) is None


def test_answers_of_other_lengths_are_not_alike():
    """However they are padded."""
    seen = pairs_given(0, [{"chosen_input_ids": CHOSEN, "rejected_input_ids": REJECTED[:, :2]}], 2)

    assert (seen.pairs, seen.alike) == (2, 0)


@pytest.mark.parametrize(
    ("columns", "pairs"),
    [
        (["prompt_ids", "chosen_ids", "rejected_ids"], True),
        (["chosen", "rejected"], True),
        (["chosen_input_ids", "rejected_input_ids", "labels"], True),
        (["input_ids", "chosen_score", "rejected_score"], False),
        (["chosen"], False),
        (None, False),
    ],
)
def test_a_data_set_declares_pairs_by_its_columns(columns, pairs):
    """Scores are no answers; of a list of rows no columns are known."""
    assert declares_pairs(SimpleNamespace(column_names=columns)) is pairs
