"""Held-out faults of labels, tokenisation, splits and order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import suite.training.data
from benchmarks.detection.bugs.parts import change_columns
from suite.training.data import IGNORED, Tokens

if TYPE_CHECKING:
    from suite.training.session import Session


def first_answer_token_ignored(session: Session) -> None:
    """The mask over the prompt is one token too long: the answer's first token is not supervised."""

    def mask_one_more(columns: dict[str, list[list[int]]]) -> None:
        for labels in columns["labels"]:
            first = next((at for at, label in enumerate(labels) if label != IGNORED), None)
            if first is not None:
                labels[first] = IGNORED

    change_columns(session, mask_one_more)


def long_rows_cut(session: Session) -> None:
    """Rows longer than four fifths of the longest are cut there, silently: they lose their end and the end token."""
    limit = max(len(row.input_ids) for row in session.batches.train) * 4 // 5
    session.batches.train = [
        replace(row, input_ids=row.input_ids[:limit], labels=row.labels[:limit]) for row in session.batches.train
    ]


def answers_begin_with_space(session: Session) -> None:
    """Answers are tokenised with a space before them, as joined text has it: the first token is another one."""
    session.batches.train = [_with_space(row, session) for row in session.batches.train]
    session.batches.heldout = [_with_space(row, session) for row in session.batches.heldout]


def _with_space(row: Tokens, session: Session) -> Tokens:
    """The row whose answer is tokenised after a space; prompt and end token stay."""
    start = next(at for at, label in enumerate(row.labels) if label != IGNORED)
    text = session.tokenizer.decode(row.input_ids[start:-1])
    answer = (*session.tokenizer(f" {text}", add_special_tokens=False)["input_ids"], row.input_ids[-1])
    return replace(row, input_ids=(*row.input_ids[:start], *answer), labels=(*row.labels[:start], *answer))


def training_rows_held_out(session: Session) -> None:
    """Every second held-out row has the tokens of a training row: the split was drawn after rows were doubled."""
    train, heldout = session.batches.train, session.batches.heldout
    session.batches.heldout = [
        replace(train[number], key=row.key) if number % 2 == 0 and number < len(train) else row
        for number, row in enumerate(heldout)
    ]


def same_order_every_epoch(session: Session) -> None:
    """The sampler is never told the epoch, so that each epoch brings the rows in the first one's order."""
    order = suite.training.data.order
    suite.training.data.order = lambda rows, seed, epoch: order(rows, seed, 0)  # type: ignore[assignment]
