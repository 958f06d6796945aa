"""Instruction data as token batches: rows, template, and an order that is a function of seed and step alone.

A row is the prompt as it is served, the answer and the end token, of which the last two are supervised.
"""

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunecheck.config.compatibility import config_error
from tunecheck.config.schema import Run
from tunecheck.core.errors import DataError
from tunecheck.core.records import INSTRUCTION, TEXT, read_records

if TYPE_CHECKING:  # the catalogue of injected bugs is listed without torch
    import torch

ALPACA = "### Instruction:\n{instruction}\n\n### Response:\n"
"""The short Alpaca prompt (stanford_alpaca's template less its preamble, which would double a row's length)."""

IGNORED = -100
"""Label of a token that is not supervised, as torch's cross entropy has it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One instruction with its answer."""

    key: str
    """Split and line number, from 0: "train:17"."""
    instruction: str
    response: str


def read_rows(path: Path, split: str) -> list[Row]:
    """Return all rows of this file. Raises BadRow with file and line for what is no row, and for an empty file."""
    return [Row(f"{split}:{number}", **held) for number, held in enumerate(read_records(path, *INSTRUCTION))]


@dataclass(frozen=True, slots=True)
class Tokens:
    """One row as token ids with their labels, unpadded."""

    key: str
    input_ids: tuple[int, ...]
    labels: tuple[int, ...]
    """The token id where it is supervised (answer and end token), -100 elsewhere."""


def prompt_text(instruction: str, tokenizer: Any, template: str) -> str:
    """What the model reads before it answers, in training and in generation alike."""
    if template == "alpaca":
        return ALPACA.format(instruction=instruction)
    messages = [{"role": "user", "content": instruction}]
    return str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))


def prompt_ids(instruction: str, tokenizer: Any, template: str) -> list[int]:
    """Return the prompt's token ids; a chat template writes its special tokens itself, so none are added again."""
    text = prompt_text(instruction, tokenizer, template)
    return list(tokenizer(text, add_special_tokens=template == "alpaca")["input_ids"])


def encode(row: Row, tokenizer: Any, template: str) -> Tokens:
    """Prompt, answer and end token, the last two supervised."""
    prompt = prompt_ids(row.instruction, tokenizer, template)
    answer = [*tokenizer(row.response, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    return Tokens(row.key, (*prompt, *answer), (*[IGNORED] * len(prompt), *answer))


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch on the device of the model."""

    keys: tuple[str, ...]
    input_ids: "torch.Tensor"
    """[rows, tokens], int64, padded on the right."""
    attention_mask: "torch.Tensor"
    """[rows, tokens], 1 where there is a token."""
    labels: "torch.Tensor"
    """[rows, tokens]: the token id where it is supervised, else -100. Not shifted: the loss shifts."""
    supervised_tokens: int
    tokens: int
    """Tokens without padding."""
    position_ids: "torch.Tensor | None" = None
    """[rows, tokens], where the trainer gives positions of its own: each document of a row begins at position 0."""
    sees: "torch.Tensor | None" = None
    """[rows, tokens, tokens], whether a position sees another, under a mask that does more than to part documents."""
    content: str = ""
    """Digest of all that the model is given, where its rows are no tokens that are known."""
    opaque: bool = False
    """Whether the model is also given an object whose contents are unknown, which the digest leaves out."""
    equal: tuple[str, ...] = ()
    """Names of two inputs of tokens that are one and the same."""

    @classmethod
    def of(cls, ids: "torch.Tensor", labels: "torch.Tensor", mask: "torch.Tensor", **others: Any) -> "Batch":
        """These tensors with their tokens counted; which rows they are is for others to find out."""
        supervised = int((labels[:, 1:] != IGNORED).sum())
        return cls(("?",) * len(ids), ids, mask, labels, supervised, int(mask.sum()), **others)

    @property
    def digest(self) -> str:
        """Digest of token ids and labels, or of the other content, 12 hex digits."""
        tokens = json.dumps([self.input_ids.tolist(), self.labels.tolist()])
        return self.content or hashlib.sha256(tokens.encode()).hexdigest()[:12]


@lru_cache(maxsize=2)  # a step lies in one epoch, or in two: a large set is not shuffled again for every row
def order(rows: int, seed: int, epoch: int) -> tuple[int, ...]:
    """The permutation of this epoch: a function of seed and epoch, the same on every machine and Python version."""
    permutation = list(range(rows))
    random.Random(f"{seed}/{epoch}").shuffle(permutation)
    return tuple(permutation)


def window_rows(step: int, rows_per_step: int, rows: int, seed: int) -> list[int]:
    """Row numbers of one optimizer step: the next ones of an endless run of shuffled epochs, none left out."""
    first = step * rows_per_step
    return [order(rows, seed, place // rows)[place % rows] for place in range(first, first + rows_per_step)]


def collate(examples: Sequence[Tokens], pad_token_id: int, width: int = 0) -> dict[str, list[list[int]]]:
    """Right-pad to the longest row, or to this width if it is more; padding is masked and never supervised."""
    longest = max(width, *(len(example.input_ids) for example in examples))
    columns: dict[str, list[list[int]]] = {"input_ids": [], "attention_mask": [], "labels": []}
    for example in examples:
        missing = longest - len(example.input_ids)
        columns["input_ids"].append([*example.input_ids, *[pad_token_id] * missing])
        columns["attention_mask"].append([1] * len(example.input_ids) + [0] * missing)
        columns["labels"].append([*example.labels, *[IGNORED] * missing])
    return columns


class Batches:
    """The training set as micro-batches, and fixed rows for evaluation."""

    def __init__(self, run: Run, tokenizer: Any, device: "torch.device") -> None:
        """Read and tokenise both splits. Raises DataError for a bad row, ConfigError for a too long one or too few."""
        self.run, self.tokenizer, self.device = run, tokenizer, device
        width = run.data.max_length if run.data.pad_to_sequence_len else 0
        self.collate: Callable[[Sequence[Tokens], int], dict[str, list[list[int]]]] = partial(collate, width=width)
        if run.data.template == "chat" and tokenizer.chat_template is None:
            rule = "should be alpaca: this tokenizer has no chat template (got 'chat')"
            raise config_error(run, ("data.template", rule))
        self.train = self._split("train", run.data.train_rows)
        self.heldout = self._split("heldout")
        row = Row("canary", canary.instruction, canary.response) if (canary := run.data.canary) else None
        self.canary = self._encoded({"canary": row})[0] if row else None
        for split in run.evaluation.splits:
            if len(self.fixed(split)) < run.evaluation.rows:
                rule = f"should be at most {len(self.fixed(split))}, the rows of split {split} of {run.data.name}"
                raise config_error(run, ("evaluation.rows", f"{rule} (got {run.evaluation.rows})"))

    def _split(self, split: str, count: int | None = None) -> list[Tokens]:
        """The first rows of a split, all of them without a count. Raises ConfigError where there are fewer."""
        data, path = self.run.data, self.run.data.file(split)
        in_blocks = data.template == "blocks"
        rows: list[Any] = blocks(path, split, data.max_length, self.tokenizer) if in_blocks else read_rows(path, split)
        if count is not None and count > len(rows):
            rule = f"should be at most {len(rows)}, all of {path} (got {count})"
            raise config_error(self.run, (f"data.{split}_rows", rule))
        first = rows[:count]
        return first if in_blocks else self._encoded({f"{path}:{at}": row for at, row in enumerate(first, start=1)})

    def _encoded(self, rows: Mapping[str, Row]) -> list[Tokens]:
        """The tokens of these rows, by their places. Raises ConfigError with the longest where one is too long."""
        tokens = {where: encode(row, self.tokenizer, self.run.data.template) for where, row in rows.items()}
        longest, where = max(((len(held.input_ids), where) for where, held in tokens.items()), default=(0, ""))
        if longest > self.run.data.max_length:
            rule = f"should be at least {longest}, the tokens of {where} (got {self.run.data.max_length})"
            way_out = "cutting the row would lose its answer, so raise the limit or shorten the row"
            raise config_error(self.run, ("data.max_length", f"{rule}: {way_out}; --set data.max_length={longest}"))
        return list(tokens.values())

    @property
    def rows_per_step(self) -> int:
        """How many rows of the training set all processes take in one optimizer step; a canary is none of them."""
        return (self.run.training.micro_batch_size - (self.canary is not None)) * self.run.micro_batches_per_step

    def window(self, step: int) -> list[Batch]:
        """The micro-batches of one optimizer step, those of all ranks."""
        return [self.batch(rows) for rows in self.rows(step)]

    def rows(self, step: int) -> list[list[Tokens]]:
        """The rows of each micro-batch of one optimizer step. With a canary, it takes the first place of each."""
        fresh = self.rows_per_step // self.run.micro_batches_per_step
        numbers = window_rows(step, self.rows_per_step, len(self.train), self.run.training.seed)
        micro_batches = [numbers[at : at + fresh] for at in range(0, len(numbers), fresh)]
        extra = [self.canary] if self.canary else []
        return [[*extra, *(self.train[number] for number in micro)] for micro in micro_batches]

    def in_order(self) -> list[Tokens]:
        """Every row of the run, one after the other, for trainers that read one data set instead of windows."""
        return [row for step in range(self.run.training.max_steps) for rows in self.rows(step) for row in rows]

    def batch(self, examples: Sequence[Tokens]) -> Batch:
        """These rows as one batch on the device."""
        import torch

        columns = self.collate(examples, self.tokenizer.pad_token_id)
        placed: dict[str, Any] = {name: torch.tensor(column, device=self.device) for name, column in columns.items()}
        return Batch(
            keys=tuple(example.key for example in examples),
            supervised_tokens=sum(label != IGNORED for row in columns["labels"] for label in row[1:]),
            tokens=sum(map(sum, columns["attention_mask"])),
            **placed,
        )

    def fixed(self, split: str) -> list[Tokens]:
        """The fixed evaluation rows: the first ones of the held-out split, or ("probe") of the training set."""
        return (self.heldout if split == "heldout" else self.train)[: self.run.evaluation.rows]


def blocks(path: Path, split: str, length: int, tokenizer: Any) -> list[Tokens]:
    """The file's texts, a space between them, as blocks of `length` tokens; what is left at the end is dropped.

    No special token is added, and no first token supervised. Raises BadRow for what is no text, DataError for less.
    """
    text = " ".join(record["text"] for record in read_records(path, *TEXT))
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if not (cut := [tuple(ids[at : at + length]) for at in range(0, len(ids) - length + 1, length)]):
        raise DataError(f"{path}: {len(ids)} tokens, less than one block of data.max_length {length}: add text")
    return [Tokens(f"{split}:{number}", block, (IGNORED, *block[1:])) for number, block in enumerate(cut)]
