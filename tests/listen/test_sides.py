"""Both sides of pairs, which one model encodes in plain loops, and a loss that scores them against each other. fp32."""

from copy import deepcopy

import pytest
import torch
from torch.nn.functional import cross_entropy, logsigmoid, normalize
from transformers import BertConfig, BertModel

from tunecheck.checks import CHECKS
from tunecheck.core.finding import Status
from tunecheck.core.trace import read
from tunecheck.listen.loop import LoopHooks
from tunecheck.listen.options import Options

TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


class Towers(torch.nn.Module):
    """Scores of queries against documents, both encoded in one pass."""

    def __init__(self):
        super().__init__()
        self.encoder = BertModel(BertConfig(vocab_size=40, **TINY))

    def forward(self, queries, documents, how=""):
        """Return their cosines."""
        return encoded(self.encoder, queries) @ beside(self.encoder, documents, how).T


def encoded(encoder, ids):
    """Return embeddings of these rows, which the encoder's mean has of them."""
    return normalize(encoder(input_ids=ids).last_hidden_state.mean(1), dim=1)


def beside(encoder, ids, how):
    """Return the same, but without gradients, or detached."""
    with torch.set_grad_enabled(how != "no_grad"):
        found = encoded(encoder, ids)
    return found.detach() if how == "detached" else found


def of_cosines(cosines):
    """Return the loss of these at a temperature of 0.05."""
    return cross_entropy(cosines / 0.05, torch.arange(len(cosines)))


def heard(model, scores_of, folder, loss_of=of_cosines):
    """Return what the check says of a loop with this loss of these scores."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    hooks = LoopHooks(Options(folder=str(folder), name="script", steps=4))
    hooks.attach()
    for _ in range(4):
        queries, documents = torch.randint(1, 40, (6, 12)), torch.randint(1, 40, (6, 12))
        loss_of(scores_of(queries, documents)).backward()
        optimizer.step()
        optimizer.zero_grad()
    hooks.detach()
    (path,) = folder.glob("watch-*.jsonl")
    return CHECKS["rows_reach_loss"]()(read(path))


@pytest.mark.parametrize("within", [True, False], ids=["in one pass", "in two"])
@pytest.mark.parametrize("how", ["", "no_grad", "detached"])
def test_a_side_that_does_not_learn_is_told(how, within, tmp_path):
    """The passages are encoded by the model that learns from the queries."""
    torch.manual_seed(0)
    model = Towers() if within else Towers().encoder
    cosines_of = (lambda q, d: model(q, d, how)) if within else lambda q, d: encoded(model, q) @ beside(model, d, how).T
    finding = heard(model, cosines_of, tmp_path)

    assert (finding.status is Status.SUSPECTED) is bool(how), finding.detail


def test_a_side_that_is_encoded_first_is_told(tmp_path):
    """Before a pass with gradients begins the step."""
    torch.manual_seed(0)
    model = Towers().encoder
    finding = heard(model, lambda q, d: (beside(model, d, "no_grad") @ encoded(model, q).T).T, tmp_path)
    assert (finding.status, finding.measured) == (Status.SUSPECTED, 1)


class Scorer(torch.nn.Module):
    """One score for each row, as of a reward."""

    def __init__(self):
        super().__init__()
        self.encoder, self.head = BertModel(BertConfig(vocab_size=40, **TINY)), torch.nn.Linear(16, 1)

    def forward(self, ids):
        """Return a number for each row."""
        return self.head(encoded(self.encoder, ids))[:, 0]


@pytest.mark.parametrize("learns", [True, False])
def test_a_rejected_side_that_does_not_learn_is_told(learns, tmp_path):
    """Of a reward model's differences, in a loss of pairs."""
    torch.manual_seed(0)
    model = Scorer()

    def difference(chosen, rejected):
        with torch.set_grad_enabled(learns):
            worse = model(rejected)
        return model(chosen) - worse

    finding = heard(model, difference, tmp_path, lambda found: -logsigmoid(found).mean())
    assert (finding.status is Status.SUSPECTED) is not learns, finding.detail


def by_momentum(model):
    """Score against what a copy says, which is no part of what learns."""
    copy = deepcopy(model)
    return lambda q, d: encoded(model, q) @ beside(copy, d, "no_grad").T


def by_memory(model):
    """Score against a queue of two batches, of which the model encodes one in each step."""
    queue = [torch.randn(6, 16), torch.randn(6, 16)]

    def cosines_of(queries, documents):
        queue.append(beside(model, documents, "no_grad"))
        return encoded(model, queries) @ torch.cat([queue.pop(0), queue[-2]]).T

    return cosines_of


def with_a_stopped_gradient(model):
    """Score both sides against the other one's embeddings, which learn in passes of their own."""

    def cosines_of(queries, documents):
        pairs = (queries, documents), (documents, queries)
        return sum(encoded(model, one) @ beside(model, other, "no_grad").T for one, other in pairs)

    return cosines_of


def measured(model):
    """Score against a copy's embeddings, and measure the model as well, without dropout."""
    cosines_of = by_momentum(model)

    def measuring(queries, documents):
        found = cosines_of(queries, documents)
        model.eval()
        beside(model, documents, "no_grad")
        model.train()
        return found

    return measuring


@pytest.mark.parametrize("made", [by_momentum, by_memory, with_a_stopped_gradient, measured])
def test_embeddings_of_others_need_not_learn(made, tmp_path):
    """Of a copy, or of an earlier step; nor those whose rows learn in another pass."""
    torch.manual_seed(0)
    model = Towers().encoder.train()
    assert heard(model, made(model), tmp_path).status is not Status.SUSPECTED
