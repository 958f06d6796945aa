"""Which positions are padding, by a mask."""

from __future__ import annotations

import pytest
import torch

from tunecheck.probes.reference.padded import outside


@pytest.mark.parametrize(
    ("mask", "padding"),
    [
        ([1, 1, 0, 0], [False, False, True, True]),
        ([0, 0, 1, 1], [True, False, False, False]),  # the first token is predicted right before it
        ([0, 1, 1, 0], [False, False, False, True]),
        ([1, 0, 1, 1], [False, False, False, False]),  # hidden on purpose
        ([0, 0, 0, 0], [True, True, True, True]),
    ],
)
def test_padding_stands_before_and_behind_a_row(mask, padding):
    """The position whose next token is a row's first one is left out."""
    assert outside(torch.tensor([mask])).tolist() == [padding]
