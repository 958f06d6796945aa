"""What a script loads into a model and what workers hand out, as it is noted; what a loss is given, by its graph."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cosine_embedding_loss,
    cross_entropy,
    log_softmax,
    nll_loss,
)
from torch.utils.data import IterableDataset

from tunecheck.listen.loaders import MOST_BATCHES, batches_of_workers, delivering
from tunecheck.listen.loss_calls import LOSSES, LossCalls
from tunecheck.listen.loss_functions import scores_given
from tunecheck.listen.provenance import loading, loads_of
from tunecheck.training.hooks import Hooks


@pytest.fixture
def model():
    """Two layers, of which the second has no tensor of the first one's shape."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))


def load(module, state):
    """Load as a script does that drops what does not fit."""
    loading(module, state)(module.load_state_dict(state, strict=False))


def others(module, prefix=""):
    """A state dict of other values, whose names begin with this."""
    return {prefix + name: tensor + 1 for name, tensor in module.state_dict().items()}


def left_out(model):
    """Number of tensors taken and left out though they fit, of each load."""
    return [(seen.taken, len(seen.misnamed)) for seen in loads_of(model)]


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "a.longer.way.to."])
def test_what_differs_by_a_prefix_is_left_out(model, prefix):
    """In either direction."""
    load(model, others(model, prefix))
    assert left_out(model) == [(0, 4)]

    whole = torch.nn.ModuleDict({"encoder": model})
    load(whole, others(model))
    assert left_out(whole) == [(0, 4)]


def test_what_is_taken_or_filled_later_is_none(model):
    """A script may try names in turn, load a part, or copy what it holds by itself."""
    load(model, others(model))
    assert left_out(model) == [(4, 0)]

    load(model, others(model, "module."))
    load(model, others(model))
    assert left_out(model) == [(4, 0)]

    load(model, {name: tensor for name, tensor in others(model).items() if name.startswith("0.")})
    assert left_out(model) == [(2, 0)]

    state = others(model, "module.")
    load(model, state)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(state[f"module.{name}"])
    assert left_out(model) == [(4, 0)]


def test_a_head_that_is_left_out_on_purpose_is_none(model):
    """Most of it is taken."""
    load(model[0], {**others(model[0]), "head.weight": torch.ones(9, 9)})
    assert left_out(model) == [(2, 0)]


class Copied(IterableDataset):
    """A data set of which each worker has a copy."""

    def __iter__(self):
        """No test iterates over it."""
        raise NotImplementedError


def rounds(batches, workers=2, dataset=None):
    """What is noted of these batches."""
    iterator = Iterator(dataset or Copied(), workers)
    for batch in batches:
        if (note := delivering(iterator)) is not None:
            note(batch)
    return [(seen.workers, seen.rounds, seen.distinct, seen.alike) for seen in batches_of_workers()]


class Iterator:
    """A loader's iterator, as far as it is looked at."""

    def __init__(self, dataset, workers):
        self._dataset, self._num_workers = dataset, workers


def batch(value):
    """A batch as collators make it: by name, with text beside tokens."""
    return {"input_ids": torch.full((2, 3), value), "length": [3, 3], "source": ["a", "b"]}


def test_batches_of_workers_are_compared_by_round():
    """Both the same in each, or different ones; the last round may lack a worker."""
    assert rounds(batch(value // 2) for value in range(7)) == [(2, 3, 3, 3)]
    assert rounds(batch(value) for value in range(6)) == [(2, 3, 3, 0)]
    assert rounds(torch.full((2,), value) for value in range(6)) == [(2, 3, 3, 0)]


def test_what_no_workers_copy_is_not_noted():
    """A data set with indices is shared by the sampler; of one worker there is nothing to compare."""
    assert rounds([batch(1)] * 4, dataset=[1, 2, 3]) == []
    assert rounds([batch(1)] * 4, workers=1) == []
    assert rounds([batch(1)] * 3 * MOST_BATCHES)[0][1] == MOST_BATCHES // 2


def logits(rows=6, classes=5):
    """Scores that a loss can be differentiated by, behind an operation as of a head."""
    torch.manual_seed(0)
    return torch.randn(rows, classes, requires_grad=True) * 2


def given(loss):
    """What the loss of these scores is given; some functions are heard as they are called."""
    calls = LossCalls()
    with Hooks() as hooks:
        for name in LOSSES:
            hooks.function(torch.nn.functional, name, before=partial(calls.called, name))
        return scores_given(loss(logits()), calls)


LABELS = torch.tensor([0, 1, 2, 3, 4, 0])
LIKELY = torch.full((6, 5), 0.2)
RIGHT = {
    "cross_entropy": lambda scores: cross_entropy(scores, LABELS),
    "smoothed": lambda scores: cross_entropy(scores, LABELS, label_smoothing=0.1),
    "soft targets": lambda scores: cross_entropy(scores, scores.detach().softmax(-1)),
    "distilled": lambda scores: torch.nn.functional.kl_div(log_softmax(scores, -1), LIKELY, reduction="batchmean"),
    "distilled over rows": lambda scores: torch.nn.functional.kl_div(
        log_softmax(scores, 0), logits().softmax(0).log(), reduction="batchmean", log_target=True
    ),
    "of attention": lambda scores: cross_entropy((scores.softmax(-1) @ torch.eye(5)) * 3, LABELS),
    "a larger sigmoid": lambda scores: cross_entropy(10 * scores.sigmoid(), LABELS),
    "binary": lambda scores: binary_cross_entropy_with_logits(scores[:, 0], LIKELY[:, 0]),
    "by hand": lambda scores: nll_loss(log_softmax(scores.float(), -1), LABELS),
    "pairs": lambda scores: cosine_embedding_loss(scores, LIKELY, torch.tensor([1, -1, 1, 1, -1, 1])),
    "pairs, some left out": lambda scores: cosine_embedding_loss(scores, LIKELY, torch.tensor([1, -1, 0, 1, -1, 0])),
}
WRONG = {
    "cross_entropy": lambda scores: cross_entropy(scores.softmax(-1), LABELS),
    "smoothed": lambda scores: cross_entropy(scores.softmax(-1).float()[:6], LABELS, label_smoothing=0.1),
    "a sigmoid": lambda scores: cross_entropy(scores.sigmoid().view(6, 5), LABELS),
    "by hand": lambda scores: nll_loss(scores.softmax(-1), LABELS),
    "binary": lambda scores: binary_cross_entropy_with_logits(scores.sigmoid()[:, 0], LIKELY[:, 0]),
    "distilled": lambda scores: torch.nn.functional.kl_div(scores.softmax(-1), LIKELY, reduction="batchmean"),
    "distilled by a module": lambda scores: torch.nn.KLDivLoss(reduction="batchmean")(
        scores.sigmoid().view(6, 5), LIKELY
    ),
    "distilled over rows": lambda scores: torch.nn.functional.kl_div(
        log_softmax(scores, 0), logits().softmax(-1), reduction="batchmean"
    ),
    "taught by logarithms": lambda scores: torch.nn.functional.kl_div(
        log_softmax(scores, -1), logits().log_softmax(-1), reduction="batchmean"
    ),
    "taught over rows": lambda scores: torch.nn.functional.kl_div(
        log_softmax(scores, -1), logits().log_softmax(0), reduction="batchmean", log_target=True
    ),
    "pairs": lambda scores: torch.nn.CosineEmbeddingLoss()(scores, LIKELY, torch.tensor([1, 0, 1, 1, 0, 1])),
    "one term of two": lambda scores: scores.square().mean() + 0.5 * cross_entropy(scores.softmax(-1), LABELS),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_loss_of_scores_is_right(name):
    """However it is made of them."""
    seen = given(RIGHT[name])
    assert seen.functions
    assert not seen.probabilities


@pytest.mark.parametrize("name", WRONG)
def test_a_loss_of_probabilities_is_found(name):
    """In whatever term."""
    assert given(WRONG[name]).probabilities


def test_a_loss_without_such_a_function_tells_nothing():
    """A squared error, or what needs no gradient."""
    assert given(lambda scores: scores.square().mean()).functions == 0
    assert given(lambda scores: torch.ones(())).functions == 0


@pytest.mark.parametrize(("inner", "outer"), [("", "default."), ("_orig_mod.", "")])
def test_what_differs_by_a_part_within_is_left_out(inner, outer):
    """In either direction, as peft's files lack the name of the adapter; what else is taken does not hide it."""
    whole = torch.nn.ModuleDict({"head": torch.nn.Linear(2, 2)})
    whole["layer"] = torch.nn.ModuleDict({"part": torch.nn.Linear(3, 4)})
    plain = others(whole)
    if outer:
        whole["layer"]["part"] = torch.nn.ModuleDict({outer[:-1]: torch.nn.Linear(3, 4)})
    state = {name.replace("part.", f"part.{inner}"): tensor for name, tensor in plain.items()}
    load(whole, state)
    assert left_out(whole) == [(2, 2)]
