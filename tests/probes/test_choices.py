"""Scores by which a position is chosen, as an answer's beginning in a text: padding is one that is not chosen."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import BertConfig, BertModel

from tunecheck.probes.positions import PositionProbe

MASK = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0]])
IDS = torch.tensor([[3, 4, 5, 6, 0, 0], [7, 8, 9, 0, 0, 0]])
WANTED = torch.tensor([1, 2])


class Reader(torch.nn.Module):
    """Scores each position twice: for the beginning of an answer and for its end."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        self.reads = BertModel(BertConfig(vocab_size=12, **sizes), add_pooling_layer=False)
        self.head = torch.nn.Linear(16, 2)

    def forward(self, input_ids, attention_mask):
        """Return scores, [rows, positions, 2]."""
        return self.head(self.reads(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state)


class Summary(BertModel):
    """Returns the mean of a row, over its tokens or over all of its positions, and no positions."""

    def __init__(self, masked):
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        super().__init__(BertConfig(vocab_size=12, **sizes), add_pooling_layer=False)
        self.masked = masked

    def forward(self, input_ids, attention_mask):
        """Return [rows, width]."""
        found = super().forward(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask if self.masked else torch.ones_like(attention_mask)
        return (found * weights[..., None]).sum(dim=1) / weights.sum(dim=1, keepdim=True)


def begins_and_ends(scores):
    """A choice among all positions, padding too, as transformers' own head has it."""
    begin, end = scores.unbind(dim=-1)
    return (torch.nn.functional.cross_entropy(begin, WANTED) + torch.nn.functional.cross_entropy(end, WANTED)) / 2


def classes(scores):
    """A class for each position, those of padding counted."""
    return torch.nn.functional.cross_entropy(scores.flatten(0, 1), torch.ones(12, dtype=torch.long))


def values(scores):
    """A number for each position, those of padding counted."""
    return (scores[..., 0] - 1).square().mean()


def probed(loss, model=None, tokenizer=None):
    """What the probe records of one step with this loss of a model."""
    model, seen = model or Reader(), []
    probe = PositionProbe(seen.append)
    session = SimpleNamespace(
        model=model,
        called=model,
        entry=None,
        tokenizer=tokenizer,
        processes=1,
        run=SimpleNamespace(holds=lambda _: False),
    )
    probe.start(session)
    probe.step_begin(session, 0, ())
    loss(model).backward()
    probe.backward_end(session, 0)
    (record,) = seen
    return record


@pytest.mark.parametrize(("loss", "padded"), [(begins_and_ends, 0), (classes, 5), (values, 5)])
def test_padding_among_which_a_position_is_chosen_may_be_learned(loss, padded):
    """It is to be scored low; where each position counts by itself it is to count for nothing."""
    seen = probed(lambda model: loss(model(IDS, MASK)))

    assert seen.padded == padded
    assert (seen.padding_share > 0) is bool(padded)


def test_a_gradient_that_a_scaler_has_overflow_says_nothing_of_padding():
    """That step is left out, and the scale is lowered."""
    seen = probed(lambda model: values(model(IDS, MASK)) * 1e38 * 1e38)

    assert (seen.padded, seen.padding_share) == (0, 0.0)


@pytest.mark.parametrize("masked", [True, False])
def test_padding_counts_in_a_summary_that_a_class_of_the_scripts_own_returns(masked):
    """What its encoder returned is looked at in place of what it returns itself."""
    seen = probed(lambda model: model(IDS, MASK).square().mean(), Summary(masked))

    assert seen.padded == 5
    assert (seen.padding_share > 1e-3) is not masked


TAGGED = torch.tensor([[1, 5, 6, 7, 8, 2, 0], [1, 9, 6, 6, 2, 0, 0]])
TAGS = torch.tensor([[-100, 1, -100, 0, 1, -100, -100], [-100, 1, 0, 0, -100, -100, -100]])


@pytest.mark.parametrize(
    ("tags", "counts"),
    [
        (TAGS, (2, 0, 0)),
        (TAGS.roll(-1, dims=1), (2, 2, 0)),
        (TAGS.roll(1, dims=1), (2, 0, 2)),
        (torch.where(TAGGED == 0, -100, 1), (0, 0, 0)),
        (torch.where(TAGGED == 1, 1, -100), (0, 0, 0)),
    ],
    ids=["words", "one early", "one late", "all tokens", "a summary"],
)
def test_tags_of_words_that_are_one_position_off(tags, counts):
    """Between the marks at both ends of a row; a word of several tokens has one tag."""
    wanted = tags.flatten()
    seen = probed(lambda model: torch.nn.functional.cross_entropy(model(TAGGED, TAGGED != 0).flatten(0, 1), wanted))

    assert (seen.marked, seen.tags_early, seen.tags_late) == counts


@pytest.mark.parametrize(
    "pieces",
    [["in", "New", "##port", "##s", "today", "."], ["\u0120in", "\u0120New", "port", "s", "\u0120today", "\u0120."]],
    ids=["WordPiece", "BPE"],
)
@pytest.mark.parametrize(
    ("tags", "counted"),
    [([0, 1, -100, -100, 0, 0], 0), ([0, 1, 1, 1, 0, 0], 0), ([0, 1, 0, 0, -100, -100], 1)],
    ids=["first tokens", "all tokens", "counted by words"],
)
def test_tags_that_are_counted_by_words_where_a_word_is_several_tokens(pieces, tags, counted):
    """The tag of each word lies at its first token, or at all of its tokens."""
    names = dict(enumerate(pieces, start=3))
    tokenizer = SimpleNamespace(convert_ids_to_tokens=lambda ids: [names[token] for token in ids])
    read = torch.tensor([[1, *names, 2]])
    wanted = torch.tensor([-100, *tags, -100])
    seen = probed(
        lambda model: torch.nn.functional.cross_entropy(model(read, read != 0).flatten(0, 1), wanted),
        tokenizer=tokenizer,
    )

    assert (seen.marked, seen.split, seen.tags_counted) == (1, 1, counted)
