"""Which positions of rows without an attention mask are padding, as far as their ends tell."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tunecheck.probes.reference.padded import mask_by_ends


def ends(*behind, width=8, token=0):
    """Rows of text that end in this many tokens of this kind."""
    rows = torch.arange(3, 3 + width).repeat(len(behind), 1)
    for row, count in zip(rows, behind, strict=True):
        row[width - count :] = token
    return rows


def padded(rows, pad=0, end=2):
    """Padded positions of each row; None where the rows are not seen to be padded."""
    model = SimpleNamespace(config=SimpleNamespace(pad_token_id=pad, eos_token_id=end))
    real = mask_by_ends(model, rows)
    return None if real is None else (~real).sum(dim=1).tolist()


def test_padding_is_behind_the_first_end():
    """Which is learned, as a row's end where there is no other token for it."""
    assert padded(ends(0, 3, 5, 1)) == [0, 2, 4, 0]
    assert padded(ends(0, 3, 5, 1, token=2), pad=None) == [0, 2, 4, 0]


@pytest.mark.parametrize(
    ("rows", "pad"),
    [
        (ends(0, 0, 0), 0),
        (ends(3, 3, 3), 0),  # a format of its own
        (ends(0, 1, 1), 0),  # ends alone
        (ends(0, 0, 0, 4), 0),  # most rows are whole
        (ends(0, 3, 5), 1),
        (ends(0, 3, 5), None),  # no padding is known, and the end is another token
    ],
)
def test_other_ends_are_no_padding(rows, pad):
    """A token that the model does not name, and what whole rows may end in."""
    assert padded(rows, pad) is None
