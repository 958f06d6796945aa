"""Rows, labels, splits and batches that are not those of the data set."""

from __future__ import annotations

import dataclasses
import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import tunecheck.training.data
from benchmarks.detection.bugs.bug import bug
from benchmarks.detection.bugs.parts import change_columns, change_window, on_resume
from tunecheck.training.data import IGNORED

if TYPE_CHECKING:
    from tunecheck.training.data import Tokens
    from tunecheck.training.session import Session


@bug(
    "B22",
    "Labels shifted twice",
    caught_by="tokens_match_template",
    source="huggingface/transformers#47394, #37830, #46898, allenai/open-instruct#1549",
)
def labels_shifted_twice(session: Session) -> None:
    """Shift the labels in the collator, although the loss shifts them too."""

    def shift(columns: dict[str, list[list[int]]]) -> None:
        columns["labels"] = [[*row[1:], IGNORED] for row in columns["labels"]]

    change_columns(session, shift)


@bug(
    "B25",
    "The end token is masked with the padding",
    caught_by="tokens_match_template",
    source="huggingface/transformers#23530, huggingface/trl#976",
)
def end_token_masked_with_padding(session: Session) -> None:
    """Mask every label that equals the padding id, which is also the end token's."""
    end = session.tokenizer.eos_token_id

    def mask(columns: dict[str, list[list[int]]]) -> None:
        columns["labels"] = [[IGNORED if label == end else label for label in row] for row in columns["labels"]]

    change_columns(session, mask)


@bug("B26", "Padding is supervised", caught_by="tokens_match_template", source="EleutherAI/gpt-neo#45, axolotl#3988")
def padding_supervised(session: Session) -> None:
    """Copy the labels from the input ids, padding included."""

    def unmask(columns: dict[str, list[list[int]]]) -> None:
        for ids, mask, labels in zip(*(columns[k] for k in ("input_ids", "attention_mask", "labels")), strict=True):
            labels[:] = [i if not m else label for i, m, label in zip(ids, mask, labels, strict=True)]

    change_columns(session, unmask)


def _change_rows(session: Session, change: Any) -> None:
    """Change every training row by this function."""
    session.batches.train = [change(row) for row in session.batches.train]


@bug(
    "B30",
    "Answers cut off by a maximum length",
    caught_by="tokens_match_template",
    source="huggingface/trl#6668, #5826, unslothai/unsloth#1128",
)
def answers_cut_off(session: Session) -> None:
    """Truncate rows four tokens after their prompt, as with a short maximum length."""

    def cut(row: Tokens) -> Tokens:
        end = sum(label == IGNORED for label in row.labels) + 4
        return dataclasses.replace(row, input_ids=row.input_ids[:end], labels=row.labels[:end])

    _change_rows(session, cut)


@bug(
    "B31",
    "Packed rows read each other",
    caught_by="tokens_match_template",
    source="huggingface/trl#1230, #805, hiyouga/LlamaFactory#4224",
)
def packed_without_borders(session: Session) -> None:
    """Concatenate the rows of a micro-batch into one sequence under a single causal mask."""
    batch = session.batches.batch

    def packed(examples: Any) -> Any:
        whole = dataclasses.replace(
            examples[0],
            input_ids=tuple(token for row in examples for token in row.input_ids),
            labels=tuple(label for row in examples for label in row.labels),
        )
        return batch([whole])

    session.batches.batch = packed  # type: ignore[method-assign]


@bug(
    "B35",
    "Two start tokens",
    caught_by="tokens_match_template",
    source="OpenRLHF/OpenRLHF#393, ml-explore/mlx-examples#1095, huggingface/open-r1#462",
)
def double_start_token(session: Session) -> None:
    """Prepend a start token that the template does not have."""
    start = session.tokenizer.bos_token_id
    _change_rows(
        session,
        lambda row: dataclasses.replace(row, input_ids=(start, *row.input_ids), labels=(IGNORED, *row.labels)),
    )


@bug(
    "B36",
    "Training and serving render prompts differently",
    caught_by="tokens_match_template",
    source="huggingface/trl#4147, #4201",
)
def no_generation_prompt(session: Session) -> None:
    """Leave out the end of the prompt (the generation prompt), which a server adds."""
    announced = 4

    def leave_out(row: Tokens) -> Tokens:
        prompt = sum(label == IGNORED for label in row.labels)
        ids = (*row.input_ids[: prompt - announced], *row.input_ids[prompt:])
        return dataclasses.replace(row, input_ids=ids, labels=row.labels[announced:])

    _change_rows(session, leave_out)


@bug(
    "B37",
    "The end token is never appended",
    caught_by="tokens_match_template",
    source="huggingface/trl#734, huggingface/transformers#22794",
)
def no_end_token(session: Session) -> None:
    """Never append the end token."""
    _change_rows(session, lambda row: dataclasses.replace(row, input_ids=row.input_ids[:-1], labels=row.labels[:-1]))


@bug(
    "B39",
    "New tokens' embeddings neither trained nor saved",
    caught_by="base_matches_file",
    source="huggingface/peft#1457, #2898, #2589",
)
def new_tokens_untrained(session: Session) -> None:
    """Add four tokens whose random embeddings are frozen and not saved."""
    session.tokenizer.add_special_tokens({"additional_special_tokens": [f"<|new{n}|>" for n in range(4)]})
    session.model.resize_token_embeddings(session.run.model.architecture.vocab_size + 4)
    session.model.get_input_embeddings().weight.requires_grad_(False)


@bug(
    "B41",
    "Workers with the same seed",
    caught_by="row_order",
    source="pytorch/pytorch#5059, #41329, xingyizhou/CenterNet#233",
)
def workers_draw_the_same(session: Session) -> None:
    """Seed two data loader workers alike: the second delivers the micro-batches of the first again."""
    change_window(session, lambda step, window: [window(step)[0]] * len(window(step)))


def _shift_after_resume(session: Session, shifted: Any) -> None:
    """Take the windows of `shifted(step, first step)` after a resume."""

    def start() -> None:
        first: list[int] = []

        def change(step: int, window: Any) -> Any:
            first.append(step)
            return window(shifted(step, first[0]))

        change_window(session, change)

    on_resume(session, start)


@bug(
    "B43",
    "A resumed run replays the data",
    caught_by="resume_equals",
    source="huggingface/transformers#38939, #39215, huggingface/accelerate#2016",
    settings=("probes.resume_from=2",),
    tier="convergence",
)
def resume_starts_over(session: Session) -> None:
    """Give a resumed run the data from the first row on."""
    _shift_after_resume(session, lambda step, first: step - first)


@bug(
    "B71",
    "The last window is short",
    caught_by="row_order",
    source="meta-pytorch/torchtune#2745, Lightning#19987, NVIDIA-NeMo/Automodel#2257",
)
def last_window_short(session: Session) -> None:
    """Drop the last micro-batch of every second window, as when the loader's length is not divisible."""
    change_window(session, lambda step, window: window(step)[: len(window(step)) - step % 2])


@bug("B100", "Training rows are held out", caught_by="heldout_is_disjoint")
def training_rows_held_out(session: Session) -> None:
    """Evaluate on training rows."""
    session.batches.heldout = session.batches.train[:8]


@bug("X18", "Padding attended, on the left", caught_by="tokens_match_template")
def padding_attended(session: Session) -> None:
    """Pad on the left with an attention mask of ones."""

    def attend(columns: dict[str, list[list[int]]]) -> None:
        for ids, mask, labels in zip(*(columns[k] for k in ("input_ids", "attention_mask", "labels")), strict=True):
            missing = mask.count(0)
            for row in (ids, labels):
                row[:] = [*row[len(row) - missing :], *row[: len(row) - missing]]
            mask[:] = [1] * len(mask)

    change_columns(session, attend)


@bug("X19", "The prompt supervised", caught_by="tokens_match_template")
def prompt_supervised(session: Session) -> None:
    """Supervise the prompt too."""

    def unmask(columns: dict[str, list[list[int]]]) -> None:
        for ids, mask, labels in zip(*(columns[k] for k in ("input_ids", "attention_mask", "labels")), strict=True):
            labels[:] = [i if m else IGNORED for i, m in zip(ids, mask, strict=True)]

    change_columns(session, unmask)


@bug("X20", "Labels of another row", caught_by="tokens_match_template")
def labels_of_another_row(session: Session) -> None:
    """Exchange the labels between the rows of a batch."""

    def roll(columns: dict[str, list[list[int]]]) -> None:
        columns["labels"] = [*columns["labels"][1:], *columns["labels"][:1]]

    change_columns(session, roll)


@bug("X21", "Answers of other questions", caught_by="tokens_match_template")
def answers_of_other_questions(session: Session) -> None:
    """Pair each question with the answer of the row before it."""
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


@bug("X22", "The same batch at every step", caught_by="batches_differ")
def same_batch_every_step(session: Session) -> None:
    """Restart the data loader at every step."""
    change_window(session, lambda step, window: window(0))


@bug("X23", "An order without a seed", caught_by="row_order")
def unseeded_order(session: Session) -> None:
    """Draw the order of the rows from the clock instead of the seed."""
    random.Random().shuffle(session.batches.train)


@bug("X24", "Every epoch in the same order", caught_by="row_order", settings=("data.train_rows=6",))
def epochs_in_the_same_order(session: Session) -> None:
    """Use the first epoch's order in every epoch."""
    from tunecheck.training import data

    rows_of: Any = data
    order = rows_of.order
    rows_of.order = lambda rows, seed, epoch: order(rows, seed, 0)


@bug("X25", "Half of the rows never come", caught_by="row_order")
def last_rows_dropped(session: Session) -> None:
    """Drop the second half of the training set."""
    session.batches.train = session.batches.train[: len(session.batches.train) // 2]


@bug(
    "X26",
    "A resumed run skips a window",
    caught_by="resume_equals",
    settings=("probes.resume_from=2",),
    tier="convergence",
)
def resume_skips_a_window(session: Session) -> None:
    """Skip one accumulation window after a resume."""
    _shift_after_resume(session, lambda step, first: step + 1)


@bug("X95", "The order does not depend on the seed", caught_by="row_order")
def order_without_the_seed(session: Session) -> None:
    """Draw an epoch's permutation from the epoch alone, without the seed."""
    import tunecheck.training.data

    def same_for_all_seeds(rows: int, seed: int, epoch: int) -> tuple[int, ...]:
        return tuple(random.Random(epoch).sample(range(rows), rows))

    tunecheck.training.data.order = same_for_all_seeds  # type: ignore[assignment]


@bug("X96", "The template has lost a line", caught_by="tokens_match_template")
def template_without_a_line(session: Session) -> None:
    """Remove the prompt's blank line from the template that everything reads."""
    import tunecheck.training.data
    from tunecheck.training import data as template

    template.ALPACA = template.ALPACA.replace("\n\n", "\n")
    session.batches = tunecheck.training.data.Batches(session.run, session.tokenizer, session.device)


@bug("X97", "The two splits exchanged", caught_by="row_order")
def splits_exchanged(session: Session) -> None:
    """Exchange the training and held-out files for loader and audit alike."""
    import tunecheck.training.data

    data = session.run.data
    exchanged = data.model_copy(update={"train": data.heldout, "heldout": data.train})
    session.run = session.run.model_copy(update={"data": exchanged})
    session.batches = tunecheck.training.data.Batches(session.run, session.tokenizer, session.device)


@bug(
    "X107",
    "No padding to the length asked for",
    caught_by="tokens_match_template",
    settings=("data.pad_to_sequence_len=true", "data.max_length=320"),
)
def not_padded_to_the_length(session: Session) -> None:
    """Pad rows to the longest of their batch although a fixed length is configured."""
    import tunecheck.training.data

    session.batches.collate = tunecheck.training.data.collate


class _Moved:
    """A tokenizer whose ids are offset by seven."""

    def __init__(self, inner: Any, ids: int, special: set[int]) -> None:
        self._inner, self._ids, self._special = inner, ids, special

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _move(self, output: Any) -> Any:
        given = output["input_ids"]
        moved = [token if token in self._special else (token + 7) % self._ids for token in given]
        return {**output, "input_ids": moved}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._move(self._inner(*args, **kwargs))

    def apply_chat_template(self, *args: Any, **kwargs: Any) -> Any:
        return self._move(self._inner.apply_chat_template(*args, **kwargs))


@bug(
    "U05",
    "The tokenizer is another model's",
    caught_by=("tokens_match_template", "first_loss_below_uniform"),
    source="thought up, not from a thread",
    cohort="unseen",
)
def another_tokenizer(session: Session) -> None:
    """Offset every token id but the special ones, as a tokenizer of another model of the same vocabulary size."""
    ids = session.run.model.architecture.vocab_size
    special = set(session.tokenizer.all_special_ids)

    def moved(row: Tokens) -> Tokens:
        tokens = tuple(t if t in special else (t + 7) % ids for t in row.input_ids)
        labels = tuple(label if label == IGNORED else t for label, t in zip(row.labels, tokens, strict=True))
        return dataclasses.replace(row, input_ids=tokens, labels=labels)

    session.batches.train = [moved(row) for row in session.batches.train]
    session.batches.heldout = [moved(row) for row in session.batches.heldout]
    session.batches.canary = moved(session.batches.canary) if session.batches.canary else None
    session.tokenizer = _Moved(session.tokenizer, ids, special)


@bug(
    "U17", "Long rows silently left out", caught_by="row_order", source="thought up, not from a thread", cohort="unseen"
)
def long_rows_left_out(session: Session) -> None:
    """Filter out the longest tenth of the rows silently."""
    rows = session.batches.train
    longest = sorted(len(row.input_ids) for row in rows)[len(rows) * 9 // 10]
    session.batches.train = [row for row in rows if len(row.input_ids) < longest]


@bug(
    "U18", "Rows drawn with replacement", caught_by="row_order", source="thought up, not from a thread", cohort="unseen"
)
def rows_drawn_with_replacement(session: Session) -> None:
    """Draw rows with replacement: some come twice in an epoch, others never."""
    draw = random.Random(session.run.training.seed)
    rows = session.batches.train
    session.batches.train = [draw.choice(rows) for _ in rows]


@bug(
    "U19",
    "Held-out rows are training rows with another answer",
    caught_by="heldout_is_disjoint",
    source="thought up, not from a thread",
    cohort="unseen",
)
def heldout_questions_trained(session: Session) -> None:
    """Take held-out rows from the training rows, with another last token."""

    def altered(row: Tokens) -> Tokens:
        other = row.input_ids[-2] + 1
        ids = (*row.input_ids[:-2], other, row.input_ids[-1])
        return dataclasses.replace(row, input_ids=ids, labels=(*row.labels[:-2], other, row.labels[-1]))

    session.batches.heldout = [altered(row) for row in session.batches.train[:8]]


@bug(
    "V06",
    "Accumulation repeats the first micro-batch",
    caught_by=("row_order", "batches_differ"),
    cohort="blind",
    must_say="Micro-batches of one window hold the same rows, or rows that the order asks for were not trained on.",
)
def first_micro_batch_repeated(session: Session) -> None:
    """Repeat the first micro-batch in each window, as when the loader is iterated anew for each."""
    change_window(session, lambda step, window: [rows[0] for rows in [window(step)] for _ in rows])


@bug(
    "V07",
    "The answer's first token is not supervised",
    caught_by=("tokens_match_template", "supervised_tokens"),
    source="lm-sys/FastChat#3061",
    cohort="blind",
    must_say="The supervised tokens are not the whole answer: the first token after the prompt is ignored.",
)
def first_answer_token_ignored(session: Session) -> None:
    """Extend the prompt's mask by one token: the answer's first token is not supervised."""

    def mask_one_more(columns: dict[str, list[list[int]]]) -> None:
        for labels in columns["labels"]:
            first = next((at for at, label in enumerate(labels) if label != IGNORED), None)
            if first is not None:
                labels[first] = IGNORED

    change_columns(session, mask_one_more)


@bug(
    "V08",
    "Long rows are cut without a word",
    caught_by=("tokens_match_template", "supervised_tokens"),
    cohort="blind",
    must_say="Some rows are shorter than their text: tokens at the end and the end token are missing.",
)
def long_rows_cut(session: Session) -> None:
    """Truncate rows silently at four fifths of the longest: they lose their end and the end token."""
    limit = max(len(row.input_ids) for row in session.batches.train) * 4 // 5
    session.batches.train = [
        replace(row, input_ids=row.input_ids[:limit], labels=row.labels[:limit]) for row in session.batches.train
    ]


def _with_space(row: Tokens, session: Session) -> Tokens:
    """Return the row with its answer tokenized after a space; prompt and end token stay."""
    start = next(at for at, label in enumerate(row.labels) if label != IGNORED)
    text = session.tokenizer.decode(row.input_ids[start:-1])
    answer = (*session.tokenizer(f" {text}", add_special_tokens=False)["input_ids"], row.input_ids[-1])
    return replace(row, input_ids=(*row.input_ids[:start], *answer), labels=(*row.labels[:start], *answer))


@bug(
    "V09",
    "Answers are tokenised with a space before them",
    caught_by="tokens_match_template",
    cohort="blind",
    must_say="The tokens of a row are not those of its template: the answer begins with another token.",
)
def answers_begin_with_space(session: Session) -> None:
    """Tokenize answers with a leading space, as joined text has it: the first token is another one."""
    session.batches.train = [_with_space(row, session) for row in session.batches.train]
    session.batches.heldout = [_with_space(row, session) for row in session.batches.heldout]


@bug(
    "V10",
    "Half of the held-out rows are training rows",
    caught_by=("heldout_is_disjoint", "tokens_match_template"),
    cohort="blind",
    settings=("evaluation.splits=[probe, heldout]",),
    must_say="The held-out split shares rows with the training set, or its rows are not those of its file.",
)
def every_second_heldout_row_trained(session: Session) -> None:
    """Replace every second held-out row with a training row, as when rows are duplicated before the split."""
    train, heldout = session.batches.train, session.batches.heldout
    session.batches.heldout = [
        replace(train[number], key=row.key) if number % 2 == 0 and number < len(train) else row
        for number, row in enumerate(heldout)
    ]


@bug(
    "V11",
    "Every epoch has the order of the first",
    caught_by="row_order",
    source="lucidrains/DALLE-pytorch#230",
    cohort="blind",
    settings=("data.train_rows=16",),
    must_say="In the second epoch the rows come in an order that is not the one drawn for that epoch.",
)
def same_order_every_epoch(session: Session) -> None:
    """Use the first epoch's order in every epoch, as when set_epoch is never called."""
    order = tunecheck.training.data.order
    tunecheck.training.data.order = lambda rows, seed, epoch: order(rows, seed, 0)  # type: ignore[assignment]


def _keep_last(row: Tokens, limit: int) -> Tokens:
    """Return the row's last tokens, up to this limit, under the label mask of the whole row."""
    prompt = next(at for at, label in enumerate(row.labels) if label != IGNORED)
    ids = row.input_ids[-limit:]
    return replace(row, input_ids=ids, labels=(*[IGNORED] * prompt, *ids[prompt:]))


@bug(
    "V41",
    "Long rows are cut on the left, the labels' mask stays",
    caught_by=("tokens_match_template", "supervised_tokens"),
    source="verl-project/verl#601",
    cohort="blind-second",
    must_say=(
        "Some rows are not their template's tokens: they lack the beginning, and their answer's first tokens "
        "are not supervised."
    ),
)
def cut_on_the_left(session: Session) -> None:
    """Truncate long rows on the left under the whole row's label mask: the answer's start is not supervised."""
    limit = max(len(row.input_ids) for row in session.batches.train) * 4 // 5
    session.batches.train = [_keep_last(row, limit) for row in session.batches.train]


SYSTEM = "Below is an instruction that describes a task. Write a response that completes the request.\n\n"


@bug(
    "V42",
    "A default system prompt stands before the training rows",
    caught_by="tokens_match_template",
    source="hiyouga/LlamaFactory#2987, huggingface/alignment-handbook#117",
    cohort="blind-second",
    must_say=(
        "The rows are not those that the template gives: other tokens stand before the prompt, which is "
        "served without them."
    ),
)
def system_prompt_in_training(session: Session) -> None:
    """Put the framework's default system prompt before every row, but not before generation's prompt."""
    system = tuple(session.tokenizer(SYSTEM, add_special_tokens=False)["input_ids"])

    def led(row: Tokens) -> Tokens:
        return replace(row, input_ids=(*system, *row.input_ids), labels=(*[IGNORED] * len(system), *row.labels))

    session.batches.train = [led(row) for row in session.batches.train]
    session.batches.heldout = [led(row) for row in session.batches.heldout]


BUFFER_ROWS = 8


@bug(
    "V43",
    "Rows are shuffled within a small buffer only",
    caught_by="row_order",
    source="NVIDIA/NeMo-Aligner#29, huggingface/trl#4564",
    cohort="blind-second",
    must_say="The rows do not come in the order drawn for the epoch: it stays close to the file's.",
)
def shuffled_in_a_buffer(session: Session) -> None:
    """Shuffle rows within a buffer of eight: an epoch stays close to the file's order."""

    def buffered(rows: int, seed: int, epoch: int) -> tuple[int, ...]:
        draw, held, drawn = random.Random(f"{seed}/{epoch}"), list(range(min(rows, BUFFER_ROWS))), list[int]()
        for row in range(len(held), rows):
            place = draw.randrange(len(held))
            drawn.append(held[place])
            held[place] = row
        draw.shuffle(held)
        return (*drawn, *held)

    tunecheck.training.data.order = buffered  # type: ignore[assignment]


MEGABATCH_ROWS = 16


@bug(
    "V44",
    "Rows come grouped by their length",
    caught_by="row_order",
    source="modelscope/ms-swift#10111, huggingface/transformers#9574",
    cohort="blind-second",
    must_say="The rows do not come in the order drawn for the epoch: they are sorted by length in groups.",
)
def grouped_by_length(session: Session) -> None:
    """Sort each sixteen shuffled rows by length, the longest first."""
    order = tunecheck.training.data.order

    def grouped(rows: int, seed: int, epoch: int) -> tuple[int, ...]:
        shuffled, train = order(rows, seed, epoch), session.batches.train
        parts = [shuffled[at : at + MEGABATCH_ROWS] for at in range(0, rows, MEGABATCH_ROWS)]
        return tuple(row for part in parts for row in sorted(part, key=lambda row: -len(train[row].input_ids)))

    tunecheck.training.data.order = grouped  # type: ignore[assignment]


@bug(
    "V45",
    "The attention mask is read off the token ids",
    caught_by=("tokens_match_template", "loss_oracle", "accumulation_oracle", "evaluation_oracle"),
    source="huggingface/transformers#2862",
    cohort="blind-second",
    must_say="The attention mask hides tokens of the row that are not padding.",
)
def mask_read_off_the_ids(session: Session) -> None:
    """Derive the attention mask from the padding id, which is also the line break's: no line break is attended to."""
    hidden = session.tokenizer("\n", add_special_tokens=False)["input_ids"][-1]

    def hide(columns: dict[str, list[list[int]]]) -> None:
        for ids, mask in zip(columns["input_ids"], columns["attention_mask"], strict=True):
            mask[:] = [seen * int(token != hidden) for token, seen in zip(ids, mask, strict=True)]

    change_columns(session, hide)


@bug(
    "V46",
    "An epoch's last window is filled up with its first rows",
    caught_by="row_order",
    source="huggingface/accelerate#125",
    cohort="blind-second",
    settings=("data.train_rows=6",),
    must_say="At an epoch's end rows come that the order does not ask for: the epoch's first ones once more.",
)
def epochs_filled_up(session: Session) -> None:
    """Fill an epoch's last window with the same epoch's first rows, so that all windows have one size."""
    batches, training = session.batches, session.run.training
    extra = [batches.canary] if batches.canary else []
    fresh = training.micro_batch_size - len(extra)

    def rows(step: int) -> list[list[Tokens]]:
        size, count = fresh * training.gradient_accumulation_steps, len(batches.train)
        epoch, window = divmod(step, math.ceil(count / size))
        order = tunecheck.training.data.order(count, training.seed, epoch)
        drawn = [batches.train[order[place % count]] for place in range(window * size, (window + 1) * size)]
        return [[*extra, *drawn[at : at + fresh]] for at in range(0, size, fresh)]

    batches.rows = rows  # type: ignore[method-assign]
