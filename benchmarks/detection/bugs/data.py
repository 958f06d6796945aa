"""Rows, labels and batches that are not those of the data set."""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING, Any

from benchmarks.detection.bugs.parts import change_columns, change_window, on_resume

if TYPE_CHECKING:
    from suite.training.data import Tokens
    from suite.training.session import Session

IGNORED = -100


def labels_shifted_twice(session: Session) -> None:
    """The collator shifts the labels, and the loss does it again."""

    def shift(columns: dict[str, list[list[int]]]) -> None:
        columns["labels"] = [[*row[1:], IGNORED] for row in columns["labels"]]

    change_columns(session, shift)


def end_token_masked_with_padding(session: Session) -> None:
    """Every label that is the padding id is masked, and the padding id is the end token's."""
    end = session.tokenizer.eos_token_id

    def mask(columns: dict[str, list[list[int]]]) -> None:
        columns["labels"] = [[IGNORED if label == end else label for label in row] for row in columns["labels"]]

    change_columns(session, mask)


def padding_supervised(session: Session) -> None:
    """Labels are a copy of the ids, padding included."""

    def unmask(columns: dict[str, list[list[int]]]) -> None:
        for ids, mask, labels in zip(*(columns[k] for k in ("input_ids", "attention_mask", "labels")), strict=True):
            labels[:] = [i if not m else label for i, m, label in zip(ids, mask, labels, strict=True)]

    change_columns(session, unmask)


def padding_attended(session: Session) -> None:
    """The attention mask is all ones, and padding stands on the left."""

    def attend(columns: dict[str, list[list[int]]]) -> None:
        for ids, mask, labels in zip(*(columns[k] for k in ("input_ids", "attention_mask", "labels")), strict=True):
            missing = mask.count(0)
            for row in (ids, labels):
                row[:] = [*row[len(row) - missing :], *row[: len(row) - missing]]
            mask[:] = [1] * len(mask)

    change_columns(session, attend)


def prompt_supervised(session: Session) -> None:
    """The prompt is learned too."""

    def unmask(columns: dict[str, list[list[int]]]) -> None:
        for ids, mask, labels in zip(*(columns[k] for k in ("input_ids", "attention_mask", "labels")), strict=True):
            labels[:] = [i if m else IGNORED for i, m in zip(ids, mask, strict=True)]

    change_columns(session, unmask)


def labels_of_another_row(session: Session) -> None:
    """The rows of a batch have each other's labels."""

    def roll(columns: dict[str, list[list[int]]]) -> None:
        columns["labels"] = [*columns["labels"][1:], *columns["labels"][:1]]

    change_columns(session, roll)


def _change_rows(session: Session, change: Any) -> None:
    session.batches.train = [change(row) for row in session.batches.train]


def double_start_token(session: Session) -> None:
    """Every row begins with a start token that the template has not."""
    start = session.tokenizer.bos_token_id
    _change_rows(
        session,
        lambda row: dataclasses.replace(row, input_ids=(start, *row.input_ids), labels=(IGNORED, *row.labels)),
    )


def answers_cut_off(session: Session) -> None:
    """Rows are cut four tokens after their prompt, as by a maximum length."""

    def cut(row: Tokens) -> Tokens:
        end = sum(label == IGNORED for label in row.labels) + 4
        return dataclasses.replace(row, input_ids=row.input_ids[:end], labels=row.labels[:end])

    _change_rows(session, cut)


def no_end_token(session: Session) -> None:
    """The end token is never appended."""
    _change_rows(session, lambda row: dataclasses.replace(row, input_ids=row.input_ids[:-1], labels=row.labels[:-1]))


def no_generation_prompt(session: Session) -> None:
    """Training leaves out the end of the prompt, which a server adds: where the answer is announced."""
    announced = 4

    def leave_out(row: Tokens) -> Tokens:
        prompt = sum(label == IGNORED for label in row.labels)
        ids = (*row.input_ids[: prompt - announced], *row.input_ids[prompt:])
        return dataclasses.replace(row, input_ids=ids, labels=row.labels[announced:])

    _change_rows(session, leave_out)


def packed_without_borders(session: Session) -> None:
    """The rows of a micro-batch are put in one long row that one causal mask covers."""
    batch = session.batches.batch

    def packed(examples: Any) -> Any:
        whole = dataclasses.replace(
            examples[0],
            input_ids=tuple(token for row in examples for token in row.input_ids),
            labels=tuple(label for row in examples for label in row.labels),
        )
        return batch([whole])

    session.batches.batch = packed  # type: ignore[method-assign]


def answers_of_other_questions(session: Session) -> None:
    """Questions and answers have slipped by one row against each other."""
    rows = session.batches.train
    prompts = [sum(label == IGNORED for label in row.labels) for row in rows]
    slipped = []
    for at, row in enumerate(rows):
        other, cut, from_ = rows[at - 1], prompts[at], prompts[at - 1]
        slipped.append(
            dataclasses.replace(
                row,
                input_ids=(*row.input_ids[:cut], *other.input_ids[from_:]),
                labels=(*row.labels[:cut], *other.labels[from_:]),
            )
        )
    session.batches.train = slipped


def same_batch_every_step(session: Session) -> None:
    """The data loader starts over at each step."""
    change_window(session, lambda step, window: window(0))


def workers_draw_the_same(session: Session) -> None:
    """Two workers with one seed: the second delivers the micro-batches of the first again."""
    change_window(session, lambda step, window: [window(step)[0]] * len(window(step)))


def unseeded_order(session: Session) -> None:
    """The order of the rows depends on the clock, not on the seed."""
    random.Random().shuffle(session.batches.train)


def epochs_in_the_same_order(session: Session) -> None:
    """Every epoch has the order of the first."""
    from suite.training import data

    rows_of: Any = data
    order = rows_of.order
    rows_of.order = lambda rows, seed, epoch: order(rows, seed, 0)


def last_window_short(session: Session) -> None:
    """The last micro-batch of a window is dropped where the loader does not divide evenly: every second step."""
    change_window(session, lambda step, window: window(step)[: len(window(step)) - step % 2])


def last_rows_dropped(session: Session) -> None:
    """The second half of the training set never comes."""
    session.batches.train = session.batches.train[: len(session.batches.train) // 2]


def resume_starts_over(session: Session) -> None:
    """A resumed run is given the data from the first row on."""
    _shift_after_resume(session, lambda step, first: step - first)


def resume_skips_a_window(session: Session) -> None:
    """A resumed run leaves out one window."""
    _shift_after_resume(session, lambda step, first: step + 1)


def _shift_after_resume(session: Session, shifted: Any) -> None:
    def start() -> None:
        first: list[int] = []

        def change(step: int, window: Any) -> Any:
            first.append(step)
            return window(shifted(step, first[0]))

        change_window(session, change)

    on_resume(session, start)


def training_rows_held_out(session: Session) -> None:
    """The held-out rows are training rows."""
    session.batches.heldout = session.batches.train[:8]


def not_padded_to_the_length(session: Session) -> None:
    """Rows are padded to the longest of their batch alone, whatever the run asks for."""
    import suite.training.data

    session.batches.collate = suite.training.data.collate


def padding_counted(session: Session) -> None:
    """Throughput is counted with the padding."""

    def counted(step: int, window: Any) -> Any:
        return [dataclasses.replace(batch, tokens=batch.input_ids.numel()) for batch in window(step)]

    change_window(session, counted)


def order_without_the_seed(session: Session) -> None:
    """The permutation of an epoch is drawn from its number alone, wherever it is asked for."""
    import suite.training.data

    def same_for_all_seeds(rows: int, seed: int, epoch: int) -> tuple[int, ...]:
        return tuple(random.Random(epoch).sample(range(rows), rows))

    suite.training.data.order = same_for_all_seeds  # type: ignore[assignment]


def template_without_a_line(session: Session) -> None:
    """The prompt's blank line has gone, for all who take it from the template."""
    import suite.training.data
    from suite.training.data import template

    template.ALPACA = template.ALPACA.replace("\n\n", "\n")
    session.batches = suite.training.data.Batches(session.run, session.tokenizer, session.device)


def splits_exchanged(session: Session) -> None:
    """The held-out file is trained on and the training file held out, by loader and audit alike."""
    import suite.training.data

    data = session.run.data
    exchanged = data.model_copy(update={"train": data.heldout, "heldout": data.train})
    session.run = session.run.model_copy(update={"data": exchanged})
    session.batches = suite.training.data.Batches(session.run, session.tokenizer, session.device)


def new_tokens_untrained(session: Session) -> None:
    """Four tokens are added, their embeddings random, frozen and in no file."""
    session.tokenizer.add_special_tokens({"additional_special_tokens": [f"<|new{n}|>" for n in range(4)]})
    session.model.resize_token_embeddings(session.run.model.architecture.vocab_size + 4)
    session.model.get_input_embeddings().weight.requires_grad_(False)
