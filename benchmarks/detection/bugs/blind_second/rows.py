"""The second blind set's faults of rows, order and padding. Imports torch; child process only."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import suite.training.data
from benchmarks.detection.bugs.parts import change_columns
from suite.training.data import IGNORED, Tokens

if TYPE_CHECKING:
    from suite.training.session import Session

SYSTEM = "Below is an instruction that describes a task. Write a response that completes the request.\n\n"
BUFFER_ROWS = 8
MEGABATCH_ROWS = 16


def cut_on_the_left(session: Session) -> None:
    """Long rows lose their beginning, and the mask over the prompt is as long as before: the answer's start is not
    supervised."""
    limit = max(len(row.input_ids) for row in session.batches.train) * 4 // 5
    session.batches.train = [_last(row, limit) for row in session.batches.train]


def _last(row: Tokens, limit: int) -> Tokens:
    """The row's last tokens, as many as this, under the labels' mask of the whole row."""
    prompt = next(at for at, label in enumerate(row.labels) if label != IGNORED)
    ids = row.input_ids[-limit:]
    return replace(row, input_ids=ids, labels=(*[IGNORED] * prompt, *ids[prompt:]))


def system_prompt_in_training(session: Session) -> None:
    """The framework's default system prompt stands before every row; who generates does not put it there."""
    system = tuple(session.tokenizer(SYSTEM, add_special_tokens=False)["input_ids"])

    def led(row: Tokens) -> Tokens:
        return replace(row, input_ids=(*system, *row.input_ids), labels=(*[IGNORED] * len(system), *row.labels))

    session.batches.train = [led(row) for row in session.batches.train]
    session.batches.heldout = [led(row) for row in session.batches.heldout]


def shuffled_in_a_buffer(session: Session) -> None:
    """Rows stream through a buffer of eight and are drawn from it: an epoch stays nearly in the file's order."""

    def buffered(rows: int, seed: int, epoch: int) -> tuple[int, ...]:
        draw, held, drawn = random.Random(f"{seed}/{epoch}"), list(range(min(rows, BUFFER_ROWS))), list[int]()
        for row in range(len(held), rows):
            place = draw.randrange(len(held))
            drawn.append(held[place])
            held[place] = row
        draw.shuffle(held)
        return (*drawn, *held)

    suite.training.data.order = buffered  # type: ignore[assignment]


def grouped_by_length(session: Session) -> None:
    """Rows of like length come together: each sixteen of the shuffled ones are sorted, the longest first."""
    order = suite.training.data.order

    def grouped(rows: int, seed: int, epoch: int) -> tuple[int, ...]:
        shuffled, train = order(rows, seed, epoch), session.batches.train
        parts = [shuffled[at : at + MEGABATCH_ROWS] for at in range(0, rows, MEGABATCH_ROWS)]
        return tuple(row for part in parts for row in sorted(part, key=lambda row: -len(train[row].input_ids)))

    suite.training.data.order = grouped  # type: ignore[assignment]


def mask_read_off_the_ids(session: Session) -> None:
    """The attention mask is "not the padding's id", and that id is the line break's: no line break is attended to."""
    hidden = session.tokenizer("\n", add_special_tokens=False)["input_ids"][-1]

    def hide(columns: dict[str, list[list[int]]]) -> None:
        for ids, mask in zip(columns["input_ids"], columns["attention_mask"], strict=True):
            mask[:] = [seen * int(token != hidden) for token, seen in zip(ids, mask, strict=True)]

    change_columns(session, hide)


def epochs_filled_up(session: Session) -> None:
    """An epoch's last window is filled up with the same epoch's first rows, so that all windows have one size."""
    batches, training = session.batches, session.run.training
    extra = [batches.canary] if batches.canary else []
    fresh = training.micro_batch_size - len(extra)

    def rows(step: int) -> list[list[Tokens]]:
        size, count = fresh * training.gradient_accumulation_steps, len(batches.train)
        epoch, window = divmod(step, math.ceil(count / size))
        order = suite.training.data.order(count, training.seed, epoch)
        drawn = [batches.train[order[place % count]] for place in range(window * size, (window + 1) * size)]
        return [[*extra, *drawn[at : at + fresh]] for at in range(0, size, fresh)]

    batches.rows = rows  # type: ignore[method-assign]
