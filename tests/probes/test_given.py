"""Mask, positions and learned part of a row, of lists of numbers alone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tunecheck.core.row_spans import LABELS_SHIFTED
from tunecheck.probes.reference.given import (
    Row,
    answers_shown,
    begun_astray,
    begun_late,
    end_tokens,
    padded_before,
    prompts_share,
    stand_still,
    starts_twice,
)
from tunecheck.training.data import IGNORED

PAD, BOS, EOS = 0, 1, 2
TOKENIZER = SimpleNamespace(pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS, unk_token_id=None)
END_IS_PADDING = SimpleNamespace(pad_token_id=EOS, bos_token_id=None, eos_token_id=EOS)
HIDDEN = "text is not attended to: the attention mask is 0 there"
PADDED = "padding on the left is attended to"
STILL = "positions do not count up"


@pytest.mark.parametrize(
    ("ids", "mask", "problems"),
    [
        ([BOS, 5, 6, 7, EOS, PAD, PAD], [1, 1, 1, 1, 1, 0, 0], []),
        ([PAD, PAD, BOS, 5, 6, 7, EOS], [0, 0, 1, 1, 1, 1, 1], []),
        ([9, 9, 9, BOS, 5, 6, EOS], [0, 0, 0, 1, 1, 1, 1], []),
        ([BOS, 5, 6, 7, EOS, 8, 9], [1, 1, 1, 1, 1, 0, 0], []),
        ([BOS, 5, 6, 7, EOS, PAD, PAD], [0, 0, 0, 1, 1, 0, 0], [HIDDEN]),
        ([BOS, 5, 6, 7, EOS, PAD, PAD], [0, 0, 0, 0, 0, 1, 1], [HIDDEN, PADDED]),
        ([PAD, PAD, BOS, 5, 6, 7, EOS], [1, 1, 1, 1, 1, 1, 1], [PADDED]),
        ([], [], []),
    ],
    ids=["right", "left", "padding unknown", "left over behind", "prompt", "inverted", "all ones", "nothing"],
)
def test_a_mask_hides_padding_alone(ids, mask, problems):
    """One token, repeated; what lies behind the last token that is attended to is seen by none."""
    assert list(Row(ids, ids, mask).input_problems(TOKENIZER)) == problems


def test_end_tokens_may_begin_a_packed_row():
    """One or two are ends of other rows, more are padding."""
    ends, padding = [EOS, EOS, 5, 6], [EOS, EOS, EOS, 5]
    assert not list(Row(ends, ends, [1] * 4).input_problems(END_IS_PADDING))
    assert list(Row(padding, padding, [1] * 4).input_problems(END_IS_PADDING)) == [PADDED]


@pytest.mark.parametrize(
    ("positions", "still"),
    [
        ([0, 1, 2, 3, 4, 5], False),
        ([512, 513, 514, 515, 516], False),
        ([0, 1, 2, 0, 1, 2, 3, 0, 0, 1, 2, 3], False),
        ([0, 4, 9, 11, 30, 31], False),
        ([0, 0, 0, 0, 0, 0], True),
        ([7, 7, 7, 7, 7, 7], True),
        ([5, 4, 3, 2, 1, 0], True),
        ([0, 0, 1, 1, 2, 2], True),
        ([0, 0], False),
    ],
    ids=["row", "offset", "packed", "jumps", "zeros", "constant", "reversed", "each twice", "two tokens"],
)
def test_positions_count_up(positions, still):
    """From token to token, and from 0 in each document."""
    assert stand_still(positions) == still
    ids = [5] * len(positions)
    assert (STILL in Row(ids, ids, [1] * len(ids), positions).input_problems(None)) == still


def test_the_learned_part_of_a_row():
    """Places are those of tokens that are attended to; the column is the batch's."""
    ids, labels = [PAD, BOS, 5, 6, 7, EOS, 8], [-100, -100, -100, 6, 7, EOS, -100]
    row = Row(ids, labels, [0, 1, 1, 1, 1, 1, 1], [0, 0, 1, 2, 0, 1, 2])
    seen = row.span(micro_batch=3, ends={EOS}, show=str)

    assert (seen.tokens, seen.learned, seen.first, seen.column, seen.behind, seen.stretches) == (6, 3, 2, 6, 1, 1)
    assert seen.documents == 2
    assert (seen.micro_batch, seen.last, seen.ended) == (3, f"[{EOS}]", True)


def test_a_row_of_which_nothing_is_learned():
    """Has no place and no last token."""
    seen = Row([5, 6], [-100, -100], [1, 1]).span(micro_batch=0, ends={EOS}, show=str)
    assert (seen.learned, seen.first, seen.behind, seen.last, seen.ended) == (0, -1, 2, "", False)


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        ([5, 6, 7, 8], ""),
        ([IGNORED, IGNORED, 7, 8], ""),
        ([6, 7, 8, 9], LABELS_SHIFTED),
        ([IGNORED, 7, 8, IGNORED], LABELS_SHIFTED),
        ([5, 6, EOS, IGNORED], ""),
        ([EOS, IGNORED, 7, 8], ""),
        ([5, EOS, 7, 8], "labels are not the tokens at their place"),
        ([5, 7, 7, 8], "labels are not the tokens at their place"),
        ([9, 9, 9, 9], "labels are not the tokens at their place"),
    ],
)
def test_shifted_labels_are_told_from_other_labels(labels, problem):
    """By every supervised label: a single one may equal the next token by chance."""
    found = Row([5, 6, 7, 8], labels, [1] * 4).label_problems(str, {EOS})
    assert [kind for kind, _ in found] == [problem] * bool(problem)


def test_end_tokens_are_the_tokenizers_or_else_the_models():
    """A chat's marks count as ends; the start of a turn, where it is the start token, does not."""
    model = SimpleNamespace(config=SimpleNamespace(eos_token_id=[7, 8]), generation_config=None)
    chat = SimpleNamespace(eos_token_id=EOS, bos_token_id=BOS, added_tokens_decoder={BOS: "", EOS: "", 9: ""})

    assert end_tokens(None, model) == ({7, 8}, {7, 8})
    assert end_tokens(chat, model) == ({EOS}, {EOS, 9})
    assert end_tokens(None, None) == (set(), set())


def beginnings(rows, *, learned=False):
    """How these rows begin, each attended to as a whole."""
    return [Row(row, row if learned else [IGNORED] * len(row), [1] * len(row)).beginning for row in rows]


@pytest.mark.parametrize(
    ("rows", "padded"),
    [
        ([[PAD] * (at % 4) + [BOS, 5, at] for at in range(12)], 9),
        ([[BOS, 5, at] for at in range(12)], 0),
        ([[9] * 4 + [BOS, at] for at in range(12)], 0),
        ([[9] * (at % 4) + [at + 10, 5] for at in range(12)], 0),
        ([[PAD] * (at % 4) + [BOS, 5, at] for at in range(7)], 0),
        ([[]] * 12, 0),
    ],
    ids=["padding", "a start token", "as many of one in each row", "other words behind", "few rows", "nothing"],
)
def test_padding_that_nobody_names_is_told_by_what_follows_it(rows, padded):
    """All rows begin with one token, behind another that comes a varying number of times."""
    assert padded_before(beginnings(rows)) == padded
    assert not padded_before(beginnings(rows, learned=True))


@pytest.mark.parametrize(
    ("rows", "bos", "tokenizer", "twice"),
    [
        ([[BOS, BOS, 5], [BOS, BOS, 6]], BOS, None, True),
        ([[BOS, BOS, 5], [BOS, 6, 7]], BOS, None, False),
        ([[BOS, BOS, 5]], BOS, None, False),
        ([[EOS, EOS, 5], [EOS, EOS, 6]], EOS, None, False),
        ([[BOS, BOS, 5], [BOS, BOS, 6]], BOS, TOKENIZER, False),
        ([[5, 5], [5, 5]], None, None, False),
    ],
    ids=["all", "some", "one row", "it ends rows too", "the tokenizer names it", "none is named"],
)
def test_two_start_tokens_are_seen_without_a_tokenizer(rows, bos, tokenizer, twice):
    """By the model's configuration; where a tokenizer names the token each row is looked at instead."""
    model = SimpleNamespace(config=SimpleNamespace(bos_token_id=bos, eos_token_id=EOS, pad_token_id=PAD))

    assert starts_twice(rows, tokenizer, model) == twice


@pytest.mark.parametrize(
    ("row", "labels", "kept"),
    [
        ([1, 5, 6, 2, 0, 0, 0], [1, 5, 6, 2, -100, -100, -100], 5),
        ([1, 5, 6, 2, 2, 2, 2], [-100, 5, 6, -100, -100, -100, -100], 4),
        ([1, 5, 6, 2, 2, 2, 2], [-100, 5, 6, 2, 2, 2, 2], 7),
        ([1, 5, 6, 7, 8, 9, 2], [-100, -100, 6, 7, -100, -100, -100], 7),
        ([1, 5, 6, 7, 8, 8, 8], [-100] * 7, 7),
    ],
    ids=["padding token", "the end token", "learned", "another turn", "cut off in its prompt"],
)
def test_padding_that_a_script_shows_to_its_model_is_no_part_of_the_row(row, labels, kept):
    """The first of the tokens stays: it may be the end."""
    assert sum(Row(row, labels, [1] * 7).without_padding().mask) == kept


@pytest.mark.parametrize(
    ("ids", "learned", "mask", "ends"),
    [
        ([BOS, 5, 6, 7, PAD], [6, 7], [1, 1, 1, 1, 1], True),
        ([BOS, 5, 6, 7, PAD, PAD], [6, 7], [1, 1, 1, 1, 1, 0], True),
        ([BOS, 5, 6, 7, PAD, 8], [6, 7, 8], [1, 1, 1, 1, 1, 1], True),
        ([BOS, 5, 6, 7, PAD, PAD], [6, 7], [1, 1, 1, 1, 1, 1], False),
        ([BOS, 5, 6, 7, PAD, PAD], [6, 7], [1, 1, 1, 1, 0, 0], False),
        ([BOS, 5, PAD, 6, 7], [6, 7], [1, 1, 1, 1, 1], False),
        ([BOS, 5, 6, 7, PAD], [6, 7, PAD], [1, 1, 1, 1, 1], False),
    ],
    ids=["longest", "padded", "before a newline", "a mask of ones", "padding alone", "a prompt's", "learned"],
)
def test_an_end_that_is_padding_is_told_from_padding(ids, learned, mask, ends):
    """It comes once, and is attended to."""
    labels = [token if token in learned else IGNORED for token in ids]
    assert Row(ids, labels, mask).padding_ends(PAD) is ends


@pytest.mark.parametrize(
    ("ids", "first", "again"),
    [
        ([BOS, 5, 6, BOS, 7, EOS], 3, True),
        ([BOS, 5, 6, BOS, 7, EOS], 4, True),
        ([BOS, 5, 6, 8, 7, EOS], 3, False),
        ([BOS, 5, EOS, BOS, 7, EOS], 3, False),
        ([BOS, 5, BOS, 6, 7, EOS], 4, False),
        ([5, 5, 6, BOS, 7, EOS], 3, False),
        ([BOS, BOS, 5, 6], 1, False),
        ([BOS, 5, BOS, 7], 0, False),
    ],
    ids=["learned", "before", "none", "behind an end", "in the prompt", "as a mark", "twice at once", "running text"],
)
def test_a_row_that_begins_again(ids, first, again):
    """Where its answer does."""
    assert Row(ids, [IGNORED] * first + ids[first:], [1] * len(ids)).begins_again(BOS, {EOS}) is again


@pytest.mark.parametrize(
    ("positions", "first"), [(None, 0), ([0, 0, 0, 1], 0), ([1, 1, 1, 2], 1)], ids=["none", "from 0", "from 1"]
)
def test_where_positions_begin(positions, first):
    """At the first token that is attended to; what padding has counts for nothing."""
    assert Row([0, 0, 5, 6], [IGNORED] * 4, [0, 0, 1, 1], positions).first_position == first


PROMPT = [*range(20, 30)]


@pytest.mark.parametrize(
    ("ids", "twice"),
    [
        ([*PROMPT, *PROMPT, 7, EOS], True),
        ([BOS, *PROMPT, *PROMPT, 7, EOS], True),
        ([BOS, *PROMPT, BOS, *PROMPT, 7, EOS], True),
        ([BOS, *PROMPT, 7, *PROMPT, EOS], False),
        ([BOS, *PROMPT[:5], *PROMPT[:5], 7, EOS], False),
        ([9] * 30, False),
        ([], False),
    ],
    ids=["plain", "behind a start", "each with a start", "later", "few tokens", "one token", "empty"],
)
def test_a_row_that_begins_twice(ids, twice):
    """With its prompt, and again with the prompt of the text behind it."""
    assert Row(ids, list(ids), [1] * len(ids)).begins_twice is twice


@pytest.mark.parametrize("late", [0, 2])
@pytest.mark.parametrize(
    ("prompts", "found"),
    [
        (lambda at, answer: [*range(40, 45 + at), 39, *answer, *PROMPT], 6),
        (lambda at, answer: [*answer, *range(40, 45), *PROMPT], 6),
        (lambda at, answer: [*range(40, 45 + at), *answer, *range(40, 40 + at), *PROMPT], 0),
        (lambda at, answer: [*range(40, 45 + at), *PROMPT], 0),
        (lambda at, answer: [50, 51, 60, 51, 70, 51, *PROMPT], 0),
        (lambda at, answer: [7, *answer, *PROMPT] if at % 2 else [50, 51, 7, 8, *answer, *PROMPT], 0),
        (lambda at, answer: [*(answer if at < 3 else [90]), *PROMPT], 0),
        (lambda at, answer: PROMPT[:2], 0),
    ],
    ids=[
        "behind its question",
        "first",
        "somewhere",
        "nowhere",
        "choices",
        "the end of another",
        "in some rows",
        "shorter than it",
    ],
)
def test_answers_that_prompts_show(prompts, found, late):
    """All at one distance, as one line of a template shows them; choices stand at one each. Its end may be learned."""
    rows = []
    for at in range(6):
        answer = [50 + 10 * (at % 3), 51]
        ids = [BOS, *prompts(at, answer), *answer, EOS]
        labels = [IGNORED] * (len(ids) - 3 - late) + ids[-3 - late :]
        rows.append(Row(ids, labels, [1] * len(ids)).prompt_and_answer({EOS}))
    assert answers_shown(rows) == found
    assert not answers_shown(rows[::3])  # of one answer
    assert not answers_shown([])


@pytest.mark.parametrize(
    ("late", "template", "rows", "found"),
    [(0, 4, 12, 0), (1, 4, 12, 1), (3, 4, 12, 3), (9, 4, 12, 0), (2, 1, 12, 0), (2, 4, 6, 0)],
    ids=["in time", "by one", "by three", "too far", "without a template", "few rows"],
)
def test_answers_that_are_learned_from_behind_their_beginning(late, template, rows, found):
    """Told by the template that stands in front of each answer, at one distance from what is learned."""
    begun = set()
    for at in range(rows):
        ids = [BOS, *range(100 + at, 105 + 2 * at), *range(20, 20 + template), *range(50 + at, 70 + at), EOS]
        prompt = len(ids) - 21 + late
        begun.add(Row(ids, [IGNORED] * prompt + ids[prompt:], [1] * len(ids)).before_answer)
    assert begun_late(begun) == found
    assert not Row(ids, [IGNORED] * len(ids), [1] * len(ids)).before_answer


@pytest.mark.parametrize(
    ("learned_from", "found"),
    [
        (lambda at, begins, size: begins, 0),
        (lambda at, begins, size: begins - 2, 0),
        (lambda at, begins, size: 3 + size, 11),
        (lambda at, begins, size: begins + 2 + at % 3, 0),
        (lambda at, begins, size: begins if at % 4 else 3 + size, 0),
    ],
    ids=["behind the template", "within it", "by the answer's length", "always later", "some rows"],
)
def test_answers_that_begin_on_both_sides_of_a_templates_end(learned_from, found):
    """A length that is another one's has nothing to do with where the template ends."""
    rows = []
    for at in range(12):
        question, answer = (
            [*range(100 + 40 * at, 112 + 40 * at + at)],
            [*range(1000 + 40 * at, 1024 + 40 * at - 2 * at)],
        )
        ids = [BOS, *question, 7, 8, 9, *answer, EOS]
        start = learned_from(at, len(question) + 4, len(answer))
        rows.append((tuple(ids[:start]), tuple(ids[start:])))
    assert begun_astray(rows) == found
    assert not begun_astray(rows[:4])


@pytest.mark.parametrize(
    ("header", "mark", "found"),
    [((7, 8, 9), (2,), True), ((7, 8, 9), (4, 5, 6, 2), True), ((), (2,), False), ((), (4, 5, 6, 2), False)],
    ids=["an end", "a long end", "no template", "a long end alone"],
)
def test_prompts_that_are_learned_like_their_answers(header, mark, found):
    """Told by a piece that all rows have once, at differing places, with answers that differ behind it."""
    rows, share = [], 0.0
    for at in range(12):
        question, answer = [*range(100 + 40 * at, 110 + 41 * at)], [*range(1000 + 40 * at, 1020 + 40 * at)]
        rows.append(Row(ids := [BOS, 20, 21, 22, *question, *header, *answer, *mark], ids, [1] * len(ids)))
        share += (len(ids) - len(answer) - len(mark)) / 12 / len(ids)
    assert all(row.is_whole for row in rows)
    whole = [row.tokens for row in rows]
    assert (abs(prompts_share(whole) - share) < 0.05) is found
    assert bool(prompts_share(whole)) is found
    others = [(*row[: -len(mark)], 9999, *mark) for row in whole]  # of answers that are compared
    assert prompts_share(whole[:4]) == prompts_share([*whole, None]) == prompts_share([*whole, *others]) == 0
    assert not Row(ids, [IGNORED] * 3 + ids[3:], [1] * len(ids)).is_whole
