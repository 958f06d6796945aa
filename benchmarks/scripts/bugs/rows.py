"""Mistakes in the rows and their collator."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from transformers import Trainer

from benchmarks.scripts.bugs.mistake import mistake
from benchmarks.scripts.script import IGNORED, Script, padded, tokens


@mistake("labels_as_configured")
def labels_shifted(script: Script) -> None:
    """The collator shifts the labels, and the loss shifts them again."""

    def collate(tokenizer: Any, rows: Any) -> dict[str, torch.Tensor]:
        batch = padded(tokenizer, rows)
        batch["labels"] = torch.cat([batch["labels"][:, 1:], torch.full_like(batch["labels"][:, :1], IGNORED)], dim=1)
        return batch

    script.collate = collate


@mistake("labels_as_configured")
def padding_learned(script: Script) -> None:
    """The collator pads the labels with the padding token, so that padding is learned."""

    def collate(tokenizer: Any, rows: Any) -> dict[str, torch.Tensor]:
        batch = padded(tokenizer, rows)
        batch["labels"][batch["attention_mask"] == 0] = tokenizer.pad_token_id
        return batch

    script.collate = collate


@mistake("labels_as_configured")
def end_masked_with_padding(script: Script) -> None:
    """The padding token is the end token, and the collator masks both."""

    def collate(tokenizer: Any, rows: Any) -> dict[str, torch.Tensor]:
        tokenizer.pad_token = tokenizer.eos_token
        batch = padded(tokenizer, rows)
        batch["labels"][batch["input_ids"] == tokenizer.pad_token_id] = IGNORED
        return batch

    script.collate = collate


@mistake("labels_as_configured", "finite")
def nothing_supervised(script: Script) -> None:
    """The response template is not found, so that every label is masked."""
    script.example = lambda tokenizer, row: {
        "input_ids": (ids := tokens(tokenizer, row)["input_ids"]),
        "labels": [IGNORED] * len(ids),
    }


@mistake("labels_as_configured")
def start_doubled(script: Script) -> None:
    """The template writes a start token, and the tokenizer adds another."""

    def example(tokenizer: Any, row: dict[str, str]) -> dict[str, list[int]]:
        held = tokens(tokenizer, row)
        start = tokenizer.bos_token_id
        return {"input_ids": [start, start, *held["input_ids"]], "labels": [IGNORED, IGNORED, *held["labels"]]}

    script.example = example


@mistake("mask_and_positions")
def left_padding_unmasked(script: Script) -> None:
    """Rows are padded on the left, and the attention mask says that padding is text."""

    def collate(tokenizer: Any, rows: Any) -> dict[str, torch.Tensor]:
        batch = padded(tokenizer, rows, left=True)
        batch["attention_mask"] = torch.ones_like(batch["attention_mask"])
        return batch

    script.collate = collate


@mistake("rows_whole")
def answers_cut_off(script: Script) -> None:
    """The longest length is shorter than most rows, and the tokenizer cuts off what exceeds it."""
    script.example = lambda tokenizer, row: {name: ids[:80] for name, ids in tokens(tokenizer, row).items()}


@mistake("rows_come_once")
def same_batch(script: Script) -> None:
    """The loader is asked for its first batch in every step."""

    class Repeating(Trainer):
        def get_train_dataloader(self) -> Any:
            first = next(iter(super().get_train_dataloader()))
            return _Endless(first)

    script.trainer = Repeating


class _Endless:
    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def __iter__(self) -> Any:
        return itertools.repeat(self.batch)

    def __len__(self) -> int:
        return 30


@mistake("rows_come_once")
def rows_drawn_with_replacement(script: Script) -> None:
    """The sampler draws rows with replacement."""

    class Drawing(Trainer):
        def _get_train_sampler(self, *args: Any) -> Any:
            return torch.utils.data.RandomSampler(range(30), replacement=True, num_samples=60)

    script.trainer = Drawing
    script.rows = 30
