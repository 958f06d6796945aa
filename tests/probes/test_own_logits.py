"""The loss and its gradient at the trainer's own logits: batched, padded and in chunks, and what it must not guess."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from tunecheck.probes.reference.own_logits import OwnLogits
from tunecheck.training.data import IGNORED
from tunecheck.training.hooks import Hooks
from tunecheck.training.ranks import Exchange

CLASSES = 11
ROWS = [
    (torch.tensor([1, 2, 3, 4]), torch.tensor([IGNORED, IGNORED, 3, 4])),
    (torch.tensor([5, 6, 7, 8, 9, 10]), torch.tensor([IGNORED, 6, 7, IGNORED, 9, 10])),
    (torch.tensor([1, 2, 3]), torch.tensor([IGNORED, 2, 3])),
]
"""The third row is the beginning of the first: only their lengths tell them apart."""


class Decoder(torch.nn.Module):
    """Stands for a decoder."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(CLASSES, 4)

    def forward(self, input_ids):
        """As transformers' decoders return it."""
        return SimpleNamespace(last_hidden_state=self.embedding(input_ids).tanh())


class Model(torch.nn.Module):
    """Stands for a causal language model."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.decoder, self.head = Decoder(), torch.nn.Linear(4, CLASSES)
        self.to(dtype)

    def get_decoder(self):
        """As transformers has it."""
        return self.decoder

    def get_output_embeddings(self):
        """Likewise."""
        return self.head

    def forward(self, input_ids, logits_to_keep=0):
        """Logits of all positions, or of so many at the end."""
        hidden = self.decoder(input_ids=input_ids).last_hidden_state
        return SimpleNamespace(logits=self.head(hidden[:, -logits_to_keep:]))


def padded(*numbers):
    """Ids and labels of these rows, side by side."""
    length = max(len(ROWS[n][0]) for n in numbers)
    ids = torch.stack([F.pad(ROWS[n][0], (0, length - len(ROWS[n][0]))) for n in numbers])
    labels = torch.stack([F.pad(ROWS[n][1], (0, length - len(ROWS[n][1])), value=IGNORED) for n in numbers])
    return ids, labels


def negative_log_likelihood(logits, labels, tokens):
    """As a trainer takes it."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), reduction="sum") / tokens


TOKENS = sum(int((labels[1:] != IGNORED).sum()) for _, labels in ROWS)


def trained(model, loss, scale=1.0):
    """Watch a window of two micro-batches with this loss of a micro-batch; its reported loss and what was seen."""
    own, reported = OwnLogits(model, ROWS, Hooks(), gradients=True), 0.0
    for numbers in ((0, 1), (2,)):
        value = loss(model, *padded(*numbers))
        (scale * value).backward()
        reported += float(value.detach())
    own.close()
    return reported, own


def whole(model, ids, labels):
    """The loss from all logits at once."""
    return negative_log_likelihood(model(input_ids=ids).logits, labels, TOKENS)


def in_chunks(model, ids, labels):
    """The loss two positions at a time, computed again for the backward pass."""
    hidden = model.get_decoder()(input_ids=ids).last_hidden_state

    def part(hidden, labels):
        return negative_log_likelihood(model.get_output_embeddings()(hidden), labels, TOKENS)

    total = torch.zeros(())
    for first in range(0, ids.shape[1] - 1, 2):
        there = slice(first, first + 3)
        total = total + checkpoint(part, hidden[:, there], labels[:, there], use_reentrant=False)
    return total


def of_the_last(model, ids, labels):
    """The loss from the logits behind the first supervised token alone, as ms-swift takes it."""
    kept = ids.shape[1] - int((labels != IGNORED).int().argmax(dim=1).min()) + 1
    logits = model(input_ids=ids, logits_to_keep=kept).logits
    return negative_log_likelihood(logits, labels[:, -kept:], TOKENS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("loss", [whole, in_chunks, of_the_last])
def test_a_right_loss_is_right_in_every_dtype(loss, dtype):
    """However coarse the logits are, however the rows are batched; fp16's gradients are scaled."""
    scale = 1024.0 if dtype is torch.float16 else 1.0
    reported, own = trained(Model(dtype), loss, scale)

    assert own.loss_of(Exchange()) == pytest.approx(reported, rel=1e-6)
    assert own.gradient_error(scale) <= 1e-5


def test_likelihoods_are_taken_where_the_logits_are(monkeypatch):
    """On the host they took most of a small model's step on a card."""
    moved = []
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: moved.append(tensor.numel()) or tensor)
    model = Model()
    own = OwnLogits(model, ROWS, Hooks())
    model(input_ids=padded(0, 1, 2)[0])

    assert own.loss_of(Exchange()) is not None
    assert moved == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_average_of_means_is_seen_in_every_dtype(dtype):
    """Micro-batches of six and of two tokens: the first counts for too little, the second for too much."""

    def mean(model, ids, labels):
        return F.cross_entropy(model(input_ids=ids).logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten()) / 2

    reported, own = trained(Model(dtype), mean)

    assert abs(own.loss_of(Exchange()) - reported) > 1e-3
    assert own.gradient_error(1.0) > 0.1


def test_a_gradient_that_is_not_the_losss_is_seen():
    """A z-loss of a thousandth, which the reported loss is without."""

    def with_z_loss(model, ids, labels):
        logits = model(input_ids=ids).logits
        extra = 1e-3 * (torch.logsumexp(logits[:, :-1], -1).square() * (labels[:, 1:] != IGNORED)).sum() / TOKENS
        return negative_log_likelihood(logits, labels, TOKENS) + extra - extra.detach()

    reported, own = trained(Model(), with_z_loss)

    assert own.loss_of(Exchange()) == pytest.approx(reported, rel=1e-6)
    assert own.gradient_error(1.0) > 1e-4


def unknown_row(model, ids, labels):
    """Another row than those of the window."""
    return whole(model, (ids + 1) % CLASSES, labels)


def selected_positions(model, ids, labels):
    """Logits of copied positions, which nobody can name."""
    hidden = model.get_decoder()(input_ids=ids).last_hidden_state
    logits = model.get_output_embeddings()(hidden[:, [*range(ids.shape[1])]])
    return negative_log_likelihood(logits, labels, TOKENS)


@pytest.mark.parametrize("loss", [unknown_row, selected_positions])
def test_what_cannot_be_assigned_is_not_guessed(loss):
    """No number is better than a wrong one."""
    _, own = trained(Model(), loss)
    assert own.loss_of(Exchange()) is None
    assert own.gradient_error(1.0) is None


def test_a_row_that_was_left_out_leaves_no_loss():
    """A mean over other tokens than the window's is another number."""
    model = Model()
    own = OwnLogits(model, ROWS, Hooks())
    with torch.no_grad():
        model(input_ids=padded(0, 1)[0])
    own.close()
    assert own.loss_of(Exchange()) is None


def test_a_window_without_supervised_tokens_leaves_no_loss():
    """As of a collator that finds no answer; the pass itself must not fail."""
    model, hooks = Model(), Hooks()
    own = OwnLogits(model, [(ids, torch.full_like(ids, IGNORED)) for ids, _ in ROWS], hooks, gradients=True)
    model(input_ids=padded(0, 1)[0])
    own.close()
    assert hooks.error == ""
    assert own.loss_of(Exchange()) is None
    assert own.gradient_error(1.0) is None


def test_nothing_is_watched_or_held_after_it_is_closed():
    """Hooks are gone, and so are the window's rows."""
    model = Model()
    _, own = trained(model, whole)
    modules = (model, model.decoder, model.head)

    assert not any(module._forward_hooks or module._forward_pre_hooks for module in modules)
    assert own.gradient_error(1.0) is not None
    assert (own._rows, own._open, own._logits, own._got, own._hidden) == ([], [], {}, {}, None)
