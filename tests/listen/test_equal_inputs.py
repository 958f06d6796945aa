"""Two inputs of a model that are to be two texts, and are one. fp32."""

from __future__ import annotations

import numpy
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification

from tunecheck.checks import CHECKS
from tunecheck.core.finding import Status
from tunecheck.core.trace import read
from tunecheck.listen.batches import unknown_batch
from tunecheck.listen.loop import LoopHooks
from tunecheck.listen.options import Options

ONE, OTHER = torch.tensor([[1, 2, 3]]), torch.tensor([[1, 2, 4]])


def found(model, losses, folder):
    """Train the model on these losses under watch, and return what is found of its batches."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    hooks = LoopHooks(Options(folder=str(folder), name="script", steps=6))
    hooks.attach()
    for loss in losses:
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    hooks.detach()
    (path,) = folder.glob("watch-*.jsonl")
    return CHECKS["batches_change"]()(read(path))


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


@pytest.mark.parametrize("labels", [[{"boxes": torch.zeros(1, 4)}] * 2, ["cat", "dog"]], ids=["of boxes", "words"])
def test_labels_that_are_no_tensor_are_not_counted(labels):
    """As those of object detection: a list of dictionaries."""
    seen = unknown_batch({"pixel_values": torch.zeros(2, 3, 4, 4), "labels": labels}, torch.device("cpu"))

    assert (len(seen.keys), seen.supervised_tokens) == (2, 0)


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
    texts = [{name: torch.randint(1, 300, (9,)) for name in ("anchor", "positive")} for _ in range(48)]

    def losses():
        for batch in DataLoader(texts, batch_size=8):
            given = {**batch, "positive[:-1]": batch["positive"][:, :-1]}
            vectors = [model(input_ids=given[name]).logits for name in passes]
            yield cross_entropy(vectors[0] @ vectors[-1].T, torch.arange(8))

    finding = found(model, losses(), tmp_path)
    assert (finding.status, told in finding.detail) == (Status.SUSPECTED if told else Status.PASSED, True)


class Views(nn.Module):
    """Vectors of two views, in one pass."""

    def __init__(self, dropout):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 8))

    def forward(self, one, other=None):
        """Return both vectors; that of the first alone without a second."""
        return self.inner(one) if other is None else (self.inner(one), self.inner(other))


@pytest.mark.parametrize("at_once", [True, False], ids=["one pass", "two passes"])
@pytest.mark.parametrize(
    ("other", "dropout", "told"),
    [
        (lambda row: row.clone(), 0.0, True),
        (lambda row: row + 0.1 * torch.randn(12), 0.0, False),
        (lambda row: row.clone(), 0.1, False),
        (lambda row: (row > 0).float(), 0.0, False),
    ],
    ids=["one view", "two views", "that are dropped from", "a mask"],
)
def test_two_views_that_are_one(other, dropout, told, at_once, tmp_path):
    """Without dropout each view gives the other's vector."""
    torch.manual_seed(0)
    model, rows = Views(dropout), torch.randn(48, 12)

    def losses():
        for one, two, _ in DataLoader([(row, other(row), row.clone()) for row in rows], batch_size=8):
            vectors = model(one, two) if at_once else (model(one), model(two))
            yield cross_entropy(vectors[0] @ vectors[1].T, torch.arange(8))

    finding = found(model, losses(), tmp_path)
    assert finding.status is (Status.SUSPECTED if told else Status.PASSED)
    assert ("one input occurs twice" in finding.detail) is told


@pytest.mark.parametrize("reads", [1, 2], ids=["a target", "one row for two heads"])
def test_rows_that_are_their_own_targets(reads, tmp_path):
    """An autoencoder's batch holds them twice, and passes read one of them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 12))
    rows = torch.randn(48, 12)
    batches = DataLoader(TensorDataset(rows, rows), batch_size=8)
    losses = (sum(mse_loss(model(one), target) for _ in range(reads)) for one, target in batches)

    assert found(model, losses, tmp_path).status is Status.PASSED


class Denoiser(nn.Module):
    """Noise of pictures, by what is given for each row."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(13, 12)

    def forward(self, noisy, number, guidance=None):
        """Return as many numbers."""
        return self.inner(torch.cat([noisy, number[:, None] / 10], dim=1))


@pytest.mark.parametrize(
    ("numbers", "others", "told"),
    [
        (torch.zeros_like, {}, True),
        (lambda drawn: drawn, {}, False),
        (lambda drawn: torch.full_like(drawn, 12), {}, False),
        (lambda drawn: drawn, {"guidance": torch.full((8,), 3.5)}, False),
        (lambda drawn: torch.zeros_like(drawn)[:, None].expand(8, 2)[:, 0], {"guidance": torch.full((8,), 3.5)}, True),
    ],
    ids=["a constant", "drawn", "lengths", "another constant", "two constants"],
)
def test_a_number_a_row_that_is_constant(numbers, others, told, tmp_path):
    """It is a question where none of such numbers varies."""
    torch.manual_seed(0)
    model = Denoiser()

    def losses():
        for _ in range(6):
            rows, noise, drawn = torch.randn(8, 12), torch.randn(8, 12), torch.randint(2, 10, (8,))
            yield mse_loss(model(rows + drawn[:, None] * noise, numbers(drawn), **others), noise)

    finding = found(model, losses(), tmp_path)
    assert finding.status is (Status.SUSPECTED if told else Status.PASSED)
    assert ("argument 1 is 0" in finding.detail) is told


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


@pytest.mark.parametrize(("dropout", "told"), [(0.0, True), (0.1, False)], ids=["alike", "dropped from"])
def test_rows_that_are_each_there_twice(dropout, told, tmp_path):
    """As of sentences of which dropout makes two views."""
    torch.manual_seed(0)
    model, rows = Views(dropout), torch.randn(48, 12)

    def losses():
        for one in DataLoader(rows, batch_size=8):
            vectors = model(one.repeat_interleave(2, dim=0))
            yield cross_entropy(vectors[::2] @ vectors[1::2].T, torch.arange(8))

    finding = found(model, losses(), tmp_path)
    assert finding.status is (Status.SUSPECTED if told else Status.PASSED), finding.detail


@pytest.mark.parametrize(
    ("index", "told"), [("first", "all rows that the model reads in 4 steps are one text"), ("own", "")]
)
def test_the_texts_of_the_rows_differ(index, told, tmp_path):
    """The first text of the data set is tokenised for each row, while labels are the row's own."""
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertForSequenceClassification(BertConfig(vocab_size=300, num_labels=2, **size))
    texts = [torch.randint(1, 300, (9,)) for _ in range(48)]
    rows = [(texts[number if index == "own" else 0], torch.tensor(number % 2)) for number in range(48)]
    batches = DataLoader(rows, batch_size=8, shuffle=True)
    losses = (model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=y).loss for ids, y in batches)
    finding = found(model, losses, tmp_path)

    assert (finding.status is Status.SUSPECTED) == bool(told)
    assert told in finding.detail


@pytest.mark.parametrize(
    ("labels", "texts", "told"),
    [
        (lambda number: number % 7 / 7, lambda number: number, ""),
        (lambda number: number % 24 % 7 / 7, lambda number: number % 24, ""),
        (lambda number: number % 7 / 7, lambda number: number % 8, "whose text came before have another target now"),
        (lambda number: 0.5, lambda number: number, "the targets of all rows are 0.5"),
    ],
    ids=["other texts", "texts again", "texts without their answers", "one rating"],
)
def test_targets_of_a_regression(labels, texts, told, tmp_path):
    """A text has one target, and texts have several."""
    torch.manual_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = BertForSequenceClassification(BertConfig(vocab_size=300, num_labels=1, **size))
    ids = torch.randint(1, 300, (48, 9))
    rows = [(ids[texts(number)], torch.tensor([labels(number)])) for number in range(48)]
    losses = (model(input_ids=batch, labels=y).loss for batch, y in DataLoader(rows, batch_size=8))
    finding = found(model, losses, tmp_path)

    assert (finding.status is Status.SUSPECTED) == bool(told), finding.detail
    assert told in finding.detail


def test_a_text_may_be_another_ones_neighbour_in_each_batch(tmp_path):
    """Where a batch holds the candidates, and a target is a place in it."""
    torch.manual_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = BertForSequenceClassification(BertConfig(vocab_size=300, num_labels=8, **size))
    pairs = torch.randint(1, 300, (16, 2, 9))
    batches = (pairs[torch.randperm(16)[:8]] for _ in range(6))
    vectors = ([model(input_ids=batch[:, side]).logits for side in (0, 1)] for batch in batches)
    finding = found(model, (cross_entropy(one @ other.T, torch.arange(8)) for one, other in vectors), tmp_path)

    assert finding.status is Status.PASSED, finding.detail
