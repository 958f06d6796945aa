"""Mistakes that take a part away: of a row, of a batch, of the rows, of what a row is seen with."""

from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig, get_peft_model

from benchmarks.scripts.bugs.mistake import mistake
from benchmarks.scripts.script import IGNORED, TARGETS, Script, loaded, padded, tokens

Row = dict[str, list[int]]


def without_end(row: Row) -> Row:
    """Return the row without its last token, the end token."""
    return {name: ids[:-1] for name, ids in row.items()}


def columns(kept: slice, *, left: bool = False) -> Any:
    """Return a collator that keeps these columns of the padded batch."""
    return lambda tokenizer, rows: {
        name: tensor[:, kept] for name, tensor in padded(tokenizer, rows, left=left).items()
    }


@mistake("answers_end")
def ends_forgotten(script: Script) -> None:
    """The template writes no end token."""
    script.example = lambda tokenizer, row: without_end(tokens(tokenizer, row))


@mistake("answers_end")
def ends_forgotten_in_half(script: Script) -> None:
    """A branch of the formatting function, for short questions, writes no end token."""

    def example(tokenizer: Any, row: dict[str, str]) -> Row:
        short = len(row["instruction"]) % 2 == 0
        return without_end(tokens(tokenizer, row)) if short else tokens(tokenizer, row)

    script.example = example


@mistake("rows_whole")
def last_columns_kept(script: Script) -> None:
    """The collator pads on the left and keeps the last 40 columns: the answers, without their prompts."""
    script.collate = columns(slice(-40, None), left=True)


@mistake("rows_whole")
def first_columns_kept(script: Script) -> None:
    """The collator keeps the first 80 columns."""
    script.collate = columns(slice(80))


@mistake("answers_end", "rows_whole")
def cut_to_the_shortest(script: Script) -> None:
    """The collator cuts all rows of a batch to its shortest."""

    def collate(tokenizer: Any, rows: Any) -> dict[str, torch.Tensor]:
        width = min(len(row["input_ids"]) for row in rows)
        return columns(slice(width))(tokenizer, rows)  # type: ignore[no-any-return]

    script.collate = collate


@mistake("batch_as_configured")
def last_row_dropped(script: Script) -> None:
    """The collator leaves out the last row of each batch, by a slice that ends one too early."""
    script.collate = lambda tokenizer, rows: padded(tokenizer, rows[:-1])


@mistake("labels_as_configured")
def answers_not_found(script: Script) -> None:
    """The mark of the answer is looked for as tokens, which in a part of the rows are others: nothing is learned."""

    def example(tokenizer: Any, row: dict[str, str]) -> Row:
        held = tokens(tokenizer, row)
        if len(row["response"]) % 2:
            held["labels"] = [IGNORED] * len(held["labels"])
        return held

    script.example = example


@mistake("mask_and_positions")
def positions_reversed(script: Script) -> None:
    """The collator counts positions from the end, for a model that reads from the right."""

    def collate(tokenizer: Any, rows: Any) -> dict[str, torch.Tensor]:
        batch = padded(tokenizer, rows)
        batch["position_ids"] = batch["attention_mask"].flip(1).cumsum(1).flip(1)
        return batch

    script.collate = collate


@mistake("mask_and_positions")
def mask_inverted(script: Script) -> None:
    """The attention mask is 1 on padding, as other libraries have it; the labels are masked rightly."""

    def collate(tokenizer: Any, rows: Any) -> dict[str, torch.Tensor]:
        batch = padded(tokenizer, rows)
        batch["attention_mask"] = 1 - batch["attention_mask"]
        batch["attention_mask"][:, -1] = 1  # the longest row has no padding
        return batch

    script.collate = collate


@mistake("trainable_set")
def adapted_twice(script: Script) -> None:
    """The base is given adapters when it is loaded, and get_peft_model is called on it again."""
    config = LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules=TARGETS)
    script.base = lambda dtype: get_peft_model(loaded(dtype), config)


@mistake("trainable_set")
def target_misspelled(script: Script) -> None:
    """One of the names of target_modules is misspelled."""
    script.lora = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_porj"]}
