"""Two inputs of a model that are to be two texts, and are one."""

from __future__ import annotations

import pytest
import torch

from tunecheck.listen.batches import unknown_batch

ONE, OTHER = torch.tensor([[1, 2, 3]]), torch.tensor([[1, 2, 4]])


@pytest.mark.parametrize(
    ("inputs", "equal"),
    [
        ({"input_ids_j": ONE, "input_ids_k": ONE.clone()}, ("input_ids_j", "input_ids_k")),
        ({"input_ids_j": ONE, "input_ids_k": OTHER}, ()),
        ({"chosen_input_ids": ONE, "rejected_input_ids": ONE[:, :2]}, ()),
        ({"input_ids": ONE, "labels": ONE, "attention_mask": torch.ones_like(ONE)}, ()),
    ],
    ids=["one text", "two texts", "a shorter one", "labels of a language model"],
)
def test_inputs_of_tokens_that_are_equal(inputs, equal):
    """By their names, which the finding tells."""
    assert unknown_batch(inputs, torch.device("cpu")).equal == equal
