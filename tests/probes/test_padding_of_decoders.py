"""Padding that a decoder reads, where no mask says which it is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tunecheck.probes.reference.padded import mask_of_decoder, outside

ROWS = torch.tensor([[0, 5, 2, 0], [0, 5, 0, 6], [0, 0, 0, 0]])


def model(**settings):
    """What declares the tokens."""
    return SimpleNamespace(config=SimpleNamespace(**{"pad_token_id": 0, "eos_token_id": 2, **settings}))


def test_padding_lies_behind_a_rows_last_token():
    """The first token may be the same, and one between others is none."""
    found = outside(mask_of_decoder(model(), ROWS, []))

    assert found.tolist() == [[False, False, False, True], [False] * 4, [False, True, True, True]]


@pytest.mark.parametrize("settings", [{"pad_token_id": None}, {"eos_token_id": 0}, {"eos_token_id": [2, 0]}])
def test_padding_that_is_the_end_token_is_not_told_apart(settings):
    """An end is learned."""
    assert mask_of_decoder(model(**settings), ROWS, []) is None


@pytest.mark.parametrize("pad", [None, 1], ids=["no other", "another"])
def test_a_tokenizer_may_pad_otherwise_than_its_model(pad):
    """As where a configuration is left at its default."""
    rows = torch.tensor([[7, 5, 2, 7, 7], [7, 5, 6, 2, 7]])
    found = outside(mask_of_decoder(model(pad_token_id=pad), rows, [7]))

    assert found.tolist() == [[False, False, False, True, True], [False] * 4 + [True]]
