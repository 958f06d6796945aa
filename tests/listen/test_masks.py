"""Masks of four dimensions: documents packed by a script, and masks that do more."""

import torch

from tunecheck.core.premises import Premise
from tunecheck.listen.batches import batch_of
from tunecheck.listen.loop_loss import not_followed, provisional
from tunecheck.probes.oracle import _documents
from tunecheck.training.data import IGNORED, Batch

PADDING = 9
IDS = torch.tensor([[1, 2, 3, 4, 5, PADDING, PADDING]])
NUMBERS = torch.tensor([0, 0, 0, 1, 1, 2, 2])
"""Of the documents; the last one is padding."""
CAUSAL = torch.tril(torch.ones(7, 7, dtype=torch.bool))
BLOCKS = (NUMBERS[:, None] == NUMBERS) & CAUSAL


def given(mask: torch.Tensor, **others: torch.Tensor) -> Batch:
    """Return what a script gives its model, in the form that probes know."""
    labels = IDS.masked_fill(IDS == PADDING, IGNORED)
    return batch_of({"input_ids": IDS, "labels": labels, "attention_mask": mask, **others}, torch.device("cpu"))


def documents(batch: Batch) -> list[list[int]]:
    """Return the tokens of each document that the oracle computes by itself."""
    return [ids.tolist() for ids, _ in _documents([batch])]


def test_a_mask_tells_documents_and_padding() -> None:
    """Of booleans or of numbers that are added, with rows of padding that see themselves or nothing."""
    added = torch.zeros(1, 1, 7, 7).masked_fill(~BLOCKS, torch.finfo(torch.float32).min)
    blind = BLOCKS & (NUMBERS[:, None] < 2)
    for mask in (BLOCKS[None, None], added, blind[None, None]):
        batch = given(mask)
        assert batch.attention_mask.tolist() == [[1, 1, 1, 1, 1, 0, 0]]
        assert documents(batch) == [[1, 2, 3], [4, 5]]
        assert batch.sees is None


def test_positions_that_run_on_part_no_documents() -> None:
    """They are the same to a model that sees distances alone; those that stand still are kept, to be judged."""
    assert documents(given(BLOCKS[None, None], position_ids=torch.arange(7)[None])) == [[1, 2, 3], [4, 5]]
    still = given(BLOCKS[None, None], position_ids=torch.zeros(1, 7, dtype=torch.long))
    assert still.position_ids is not None
    assert not still.position_ids.any()


def test_a_prompt_that_is_not_learned_is_no_padding() -> None:
    """A document of other tokens has a place in the row though nothing of it is learned."""
    inputs = {"input_ids": IDS, "labels": torch.full_like(IDS, IGNORED), "attention_mask": BLOCKS[None, None]}
    assert batch_of(inputs, torch.device("cpu")).attention_mask.tolist() == [[1, 1, 1, 1, 1, 0, 0]]


def test_what_nothing_sees_is_padding() -> None:
    """Whatever it sees itself."""
    real = torch.arange(7) < 5
    batch = given((CAUSAL & real)[None, None])
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1, 1, 0, 0]]
    assert documents(batch) == [[1, 2, 3, 4, 5]]


def test_masks_of_several_kinds_of_layers_leave_the_loss_unjudged() -> None:
    """A dictionary, which transformers hands to its layers as it is."""
    inputs = {"input_ids": IDS, "labels": IDS, "attention_mask": {"full_attention": BLOCKS[None, None]}}
    batch = batch_of(inputs, torch.device("cpu"))

    assert not_followed(inputs, batch).keys() == {Premise.ROWS_FOLLOWED, Premise.POSITIONS_FOLLOWED}
    assert provisional(inputs, torch.device("cpu")).supervised_tokens == 6


def test_a_mask_that_does_more_leaves_the_loss_unjudged() -> None:
    """A prompt that sees itself as a whole (prefix language model), windows, trees: nothing here gives it again."""
    prefix = CAUSAL | (torch.arange(7) < 3)
    batch = given(prefix[None, None])
    assert batch.sees is not None
    assert not_followed({"attention_mask": prefix[None, None]}, batch).keys() == {Premise.ROWS_FOLLOWED}
