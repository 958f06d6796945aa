"""Two inputs of a model that are to be two texts, and are one. fp32."""

from __future__ import annotations

import numpy
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

from tunecheck.checks import CHECKS
from tunecheck.core.finding import Status
from tunecheck.core.trace import read
from tunecheck.listen.batches import unknown_batch
from tunecheck.listen.loop import LoopHooks
from tunecheck.listen.options import Options

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


@pytest.mark.parametrize(
    ("passes", "told"),
    [
        (("anchor", "anchor"), "no pass reads ['positive'] of the loader"),
        (("anchor", "positive"), ""),
        (("anchor", "positive[:-1]"), ""),
        (("anchor",), ""),
    ],
    ids=["one text twice", "both", "the other without its end", "one text once"],
)
def test_a_text_of_a_pair_that_no_pass_reads(passes, told, tmp_path):
    """It is asked about where another one is read twice; a column may be there for a metric."""
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertForSequenceClassification(BertConfig(vocab_size=300, num_labels=8, **size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    texts = [{name: torch.randint(1, 300, (9,)) for name in ("anchor", "positive")} for _ in range(48)]
    hooks = LoopHooks(Options(folder=str(tmp_path), name="script", steps=6))
    hooks.attach()
    for batch in DataLoader(texts, batch_size=8):
        given = {**batch, "positive[:-1]": batch["positive"][:, :-1]}
        vectors = [model(input_ids=given[name]).logits for name in passes]
        cross_entropy(vectors[0] @ vectors[-1].T, torch.arange(8)).backward()
        optimizer.step()
        optimizer.zero_grad()
    hooks.detach()
    (path,) = tmp_path.glob("watch-*.jsonl")
    finding = CHECKS["batches_change"]()(read(path))

    assert (finding.status, told in finding.detail) == (Status.SUSPECTED if told else Status.PASSED, True)


class Picture:
    """Pixels with a method of the name that arrays have, as PIL's images are."""

    def __init__(self, pixels):
        self.held = memoryview(pixels)  # as PIL's, nothing that we look into

    def tobytes(self):
        """Nobody calls this: it may read a file."""
        raise NotImplementedError


@pytest.mark.parametrize(
    ("value", "opaque"),
    [(Picture(b"0123"), True), (numpy.arange(3), False), (numpy.array([Picture(b"01")], dtype=object), True)],
    ids=["a picture", "numbers", "pictures in an array"],
)
def test_inputs_that_cannot_be_looked_into(value, opaque):
    """Their content is no reason to call two batches equal, and looking at them calls none of their methods."""
    assert unknown_batch({"images": [value]}, torch.device("cpu")).opaque is opaque
