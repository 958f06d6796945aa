"""Mistakes of a set that somebody wrote who knew the README alone: those that were not named at first."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.scripts.bugs.mistake import mistake
from benchmarks.scripts.parts import masked_tokens, other, scored
from benchmarks.scripts.script import IGNORED, Script, padded, tokens


@mistake("labels_as_configured")
def answers_masked(script: Script) -> None:
    """The masks of prompt and answer are exchanged: the prompt is learned, and none of the answer."""

    def example(tokenizer: Any, row: dict[str, str]) -> dict[str, list[int]]:
        made = tokens(tokenizer, row)
        pairs = zip(made["input_ids"], made["labels"], strict=True)
        return {**made, "labels": [token if label == IGNORED else IGNORED for token, label in pairs]}

    script.example = example


@mistake("no_loss_on_padding")
def last_position_is_padding(script: Script) -> None:
    """A row's score is read at the last position, which is padding in all rows but the longest."""
    scored(lambda mask: torch.full((len(mask),), mask.shape[1] - 1))(script)


@mistake("no_loss_on_padding")
def classes_of_padding(script: Script) -> None:
    """Padding has the class 0, as tokens that name nothing have."""
    other("bert", "AutoModelForTokenClassification", is_decoder=False)(script)

    def collate(tokenizer: Any, rows: Any) -> dict[str, torch.Tensor]:
        batch = padded(tokenizer, rows)
        return {**batch, "labels": (batch["input_ids"] % 2) * batch["attention_mask"]}

    script.collate = collate


@mistake("no_target_leakage")
def labels_after_masking(script: Script) -> None:
    """The labels of hidden tokens were taken after these had been hidden."""
    other("bert", "AutoModelForMaskedLM", is_decoder=False)(script)
    masked_tokens(script)
    hidden = script.collate

    def collate(tokenizer: Any, rows: Any) -> dict[str, torch.Tensor]:
        batch = hidden(tokenizer, rows)
        return {**batch, "labels": batch["input_ids"].masked_fill(batch["labels"] == IGNORED, IGNORED)}

    script.collate = collate


@mistake("no_target_leakage")
def decoder_given_labels(script: Script) -> None:
    """The decoder is given the labels as they are, and not shifted."""
    other("t5", "AutoModelForSeq2SeqLM", decoder_start_token_id=0, is_decoder=False)(script)

    def collate(tokenizer: Any, rows: Any) -> dict[str, torch.Tensor]:
        batch = padded(tokenizer, rows)
        return {**batch, "decoder_input_ids": batch["labels"].masked_fill(batch["labels"] == IGNORED, 0)}

    script.collate = collate
