"""A model that has only to copy, told from those that are asked for what they read for a reason."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tunecheck.probes.reference.own_tokens import Call, tokens_and_numbers

VOCABULARY, WIDTH = 16, 8


class Reader(nn.Module):
    """Reads rows one way or another, and gives each position scores."""

    def __init__(self, how):
        super().__init__()
        torch.manual_seed(0)
        self.how, self.calls, self.shapes = how, 0, []
        self.embedding, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.rnn = nn.LSTM(WIDTH, WIDTH // (2 if how == "both ways" else 1), bidirectional=how == "both ways")
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, ids, targets=None):
        """Return scores, and a loss."""
        self.seen += 1
        self.calls += 1
        self.shapes.append(ids.shape)
        self.last = ids
        print("called")
        if self.how == "refuses" and not self.training:
            raise RuntimeError("not in eval mode")
        x = self.embedding(ids)
        if self.how == "shifts":
            x = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)
        scores = self.head(self.rnn(x.transpose(0, 1))[0].transpose(0, 1))
        last = scores[:, -1:] if self.how == "last" and not self.training else scores
        return last, scores.sum()


@pytest.mark.parametrize(
    ("how", "copies"),
    [("forward", True), ("both ways", False), ("shifts", False), ("last", False), ("refuses", False)],
)
def test_a_causal_model_that_sees_its_target_copies(how, copies):
    """An autoencoder sees what is behind, too; one that shifts within itself does not see its own token."""
    model, ids = Reader(how), torch.arange(12).view(2, 6) % 7

    assert Call(model, (ids,), {"targets": ids}, ids).copies() is copies
    assert model.training
    assert model.seen == 0


@pytest.mark.parametrize(
    ("how", "seeing"),
    [("forward", [False, False]), ("both ways", [True, True]), ("shifts", [False, False]), ("refuses", None)],
)
@pytest.mark.parametrize("rows", [4, 3])
def test_rows_that_see_the_next_token_are_told(how, seeing, rows, capsys):
    """And whatever the model's own code keeps of a call, or prints, is as it was."""
    model, ids = Reader(how), torch.arange(6 * rows).view(rows, 6) % 7
    seen = Call(model, (ids,), {}, ids).rows_that_see(2)

    assert (seen if seen is None else seen.tolist()) == seeing
    assert (model.calls, model.shapes, model.seen, hasattr(model, "last")) == (0, [], 0, False)
    assert capsys.readouterr().out == ""


def test_what_other_rows_change_is_rounding():
    """Experts to which other tokens are sent; of a single row alone more is needed."""
    model, ids = Reader("forward"), torch.arange(24).view(4, 6) % 7
    one = ids[:1]
    model.head.register_forward_hook(lambda module, args, out: out + 1e-4 * args[0].sum())
    assert not Call(model, (ids,), {}, ids).rows_that_see(2).any()
    assert not Call(model, (one,), {}, one).rows_that_see(2).any()
    assert Call(Reader("both ways"), (one,), {}, one).rows_that_see(2).all()


def test_scores_that_differ_by_themselves_tell_nothing():
    """Noise in every pass."""
    model, ids = Reader("both ways"), torch.arange(12).view(2, 6) % 7
    model.embedding.register_forward_hook(lambda module, args, out: out + torch.randn_like(out))

    assert Call(model, (ids,), {}, ids).rows_that_see(2) is None


@pytest.mark.parametrize(
    ("args", "out"),
    [
        ((torch.ones(2, 6),), torch.ones(2, 6, 16)),
        ((torch.ones(2, 6, dtype=torch.int64),), torch.ones(2, 16)),
        ((torch.ones(2, 6, dtype=torch.int64),), torch.ones(2, 5, 16)),
        ((torch.full((2, 6), 16),), torch.ones(2, 6, 16)),
    ],
    ids=["numbers", "scores of rows", "other positions", "tokens beyond the scores"],
)
def test_what_has_no_score_for_each_of_its_tokens_is_left_alone(args, out):
    """Pictures, classifiers, embeddings."""
    assert tokens_and_numbers(args, {}, out) is None


def test_scores_may_come_in_parts_of_the_positions():
    """As a head gives them whose logits are not all to be held at once. Other numbers beside them make it unknown."""
    ids, scores = torch.full((2, 6), 5), torch.randn(2, 6, 16)
    read, parts = tokens_and_numbers((ids,), {}, [*scores.split(4, dim=1)])

    assert read is ids
    assert torch.cat(parts, dim=1).equal(scores)
    assert tokens_and_numbers((ids,), {}, [*scores.split(4, dim=1), torch.ones(2, 6, 3)]) is None
    assert tokens_and_numbers((ids,), {}, [*scores[:, :5].split(4, dim=1)]) is None
