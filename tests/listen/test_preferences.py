"""Pairs of answers in what a Trainer gives its model."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tunecheck.listen.preferences import answers_rated, declares_pairs, declares_ratings, pairs_of

CHOSEN = torch.tensor([[1, 2, 3], [1, 4, 5]])
REJECTED = torch.tensor([[1, 2, 3], [1, 5, 4]])
APART = {"chosen_input_ids": CHOSEN, "rejected_input_ids": REJECTED}
JOINED = {"input_ids": torch.cat([CHOSEN, REJECTED])}


@pytest.mark.parametrize("given", [APART, JOINED], ids=["apart", "joined"])
def test_pairs_are_counted(given):
    """With keys of their own, or joined as TRL's collators do."""
    seen = pairs_of(3, [given, given], 2, [])

    assert (seen.step, seen.pairs, seen.alike) == (3, 4, 2)


@pytest.mark.parametrize(
    ("given", "rows"), [(JOINED, 4), (JOINED, None), ({}, 2)], ids=["not joined", "nobody knows", "no tokens"]
)
def test_what_is_not_joined_has_no_pairs(given, rows):
    """An epoch's last micro-batch may have fewer rows."""
    assert pairs_of(0, [given], rows, []) is None


SYSTEM = [7, 8, 9, 10]
"""What a template begins every prompt with."""


def conversations(prompts, answers):
    """A micro-batch as TRL joins it: chosen, then rejected, padded behind."""
    rows = [
        (prompt, answer)
        for answer in zip(*answers, strict=True)
        for prompt, answer in zip(prompts, answer, strict=True)
    ]
    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    masks = [[0] * len(prompt) + [1] * len(answer) for prompt, answer in rows]
    filled = [(prompt + answer, [1] * len(mask), mask) for (prompt, answer), mask in zip(rows, masks, strict=True)]
    names = "input_ids", "attention_mask", "completion_mask"
    return {name: torch.tensor([(row[at] + [0] * width)[:width] for row in filled]) for at, name in enumerate(names)}


@pytest.mark.parametrize(
    ("prompts", "before", "again"),
    [
        ([[*SYSTEM, 1, 2], [*SYSTEM, 3]], lambda prompt: prompt, (2, 0)),
        ([[5, *SYSTEM, 1, 2], [5, *SYSTEM, 3]], lambda prompt: prompt[1:], (2, 0)),
        ([[*SYSTEM, 1, 2], [*SYSTEM, 3]], lambda prompt: [], (0, 0)),
        ([[*SYSTEM, 1, 2], [*SYSTEM, 3]], lambda prompt: prompt[4:], (0, 0)),
        ([[7, 8, 1, 2], [3, 4, 5, 6]], lambda prompt: prompt, (0, 0)),
        ([[7, 1, 2, 3, 4, 5, 9], [7, 2, 3, 4, 5, 6, 9]], lambda prompt: prompt[1:-1], (0, 2)),
    ],
    ids=["whole", "without its start token", "answers", "answers that quote", "texts to go on with", "questions"],
)
def test_answers_that_begin_with_their_whole_prompt_are_counted(prompts, before, again):
    """Both of a pair; where no template writes the prompts, an answer may well take one up."""
    answers = [([*before(prompt), 11, number], [*before(prompt), 12]) for number, prompt in enumerate(prompts)]
    seen = pairs_of(0, [conversations(prompts, answers)], len(prompts), [])

    assert (seen.pairs, seen.alike, seen.prompts_again, seen.questions_again) == (2, 0, *again)


def test_the_prompts_of_earlier_windows_tell_what_all_begin_with():
    """Where a window has one pair, and only there: the rows of a window may come of one source."""
    prompts, before = [[*SYSTEM, 1, 2], [*SYSTEM, 3], [*SYSTEM, 4, 5]], []
    one_by_one = [pairs_of(0, [conversations([each], [([*each, 11], [*each, 12])])], 1, before) for each in prompts]

    assert [seen.prompts_again for seen in one_by_one] == [0, 1, 1]
    others = conversations([[5, 6, 1, 2], [5, 6, 3]], [([11], [13]), ([12], [14])])
    assert pairs_of(0, [others], 2, before).prompts_again == 0
    assert len(before) == 5


def test_answers_of_other_lengths_are_not_alike():
    """However they are padded."""
    seen = pairs_of(0, [{"chosen_input_ids": CHOSEN, "rejected_input_ids": REJECTED[:, :2]}], 2, [])

    assert (seen.pairs, seen.alike) == (2, 0)


@pytest.mark.parametrize(
    ("columns", "pairs"),
    [
        (["prompt_ids", "chosen_ids", "rejected_ids"], True),
        (["chosen", "rejected"], True),
        (["chosen_input_ids", "rejected_input_ids", "labels"], True),
        (["input_ids", "chosen_score", "rejected_score"], False),
        (["chosen"], False),
        (None, False),
    ],
)
def test_a_data_set_declares_pairs_by_its_columns(columns, pairs):
    """Scores are no answers; of a list of rows no columns are known."""
    assert declares_pairs(SimpleNamespace(column_names=columns)) is pairs


class Rated:
    """A data set of answers with a label each, in the words of datasets."""

    def __init__(self, *labels, **columns):
        self.labels, self.columns = labels, columns or {"prompt": [], "completion": []}
        self.column_names = [*self.columns, "label"]

    def __len__(self):
        return len(self.labels)

    def unique(self, _column):
        """Return each label once."""
        return sorted({*self.labels})

    def select_columns(self, _column):
        """Return all of them."""
        return self

    def with_format(self, _none):
        """Return what has no format of its own."""
        return self

    def __getitem__(self, rows):
        """Return these rows by their columns."""
        return {name: column[rows] for name, column in self.columns.items()}


RATED = {"completion_input_ids": CHOSEN, "label": torch.tensor([True, True])}


@pytest.mark.parametrize("labels", [(True, False), (True, True)])
def test_ratings_are_those_of_the_whole_data_set(labels):
    """A micro-batch may well hold good answers alone."""
    dataset = Rated(*labels)

    assert declares_ratings(dataset)
    seen = answers_rated(dataset, RATED)
    assert (seen.rows, seen.kinds) == (2, tuple(sorted(map(str, {*labels}))))


USER, OWN = {"role": "user", "content": "why?"}, {"role": "assistant", "content": "so"}


@pytest.mark.parametrize(
    ("names", "prompt", "answer"),
    [
        (("prompt", "completion"), "why? ", "so"),
        (("prompt", "completion"), [USER], [OWN]),
        (("prompt_ids", "completion_ids"), [7, 8], [9]),
        (("prompt_input_ids", "answer_input_ids", "completion_input_ids"), [7, 8], [9]),
    ],
    ids=["texts", "chats", "tokens", "tokens beside the whole row"],
)
@pytest.mark.parametrize("again", [True, False], ids=["again", "once"])
def test_rated_answers_that_begin_with_their_prompt_are_counted(names, prompt, answer, again):
    """A column of the whole row has the prompt by right."""
    columns = dict(zip(names, ([prompt], [prompt + answer if again else answer], [prompt + answer]), strict=False))
    seen = answers_rated(Rated(True, **columns), RATED)

    assert (seen.looked, seen.again) == (1, int(again))


@pytest.mark.parametrize(
    ("dataset", "given"),
    [(Rated(True), {"input_ids": CHOSEN, "labels": CHOSEN}), ([], RATED)],
    ids=["a column that is left over", "a stream"],
)
def test_what_is_not_rated_has_no_ratings(dataset, given):
    """Labels that the model is not given, and those of which nobody knows the rest."""
    assert answers_rated(dataset, given) is None
