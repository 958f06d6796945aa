"""Mistakes in many ways of fine-tuning: those that were not named at first, by somebody who knew the README alone."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.scripts.bugs.mistake import mistake
from benchmarks.scripts.practices import packed
from benchmarks.scripts.script import IGNORED, Script, plain_loop

Batch = dict[str, torch.Tensor]


def _packing(script: Script, change: Any) -> None:
    """Have the script train all weights on packed rows that are changed in this way."""

    def loop(script: Script, model: Any, batches: list[Batch]) -> None:
        plain_loop(script, model, [{**packed(batch), **change(packed(batch))} for batch in batches])

    script.lora, script.loop = None, loop


@mistake("mask_and_positions")
def mask_without_triangle(script: Script) -> None:
    """The mask of packed rows keeps documents apart, and shows what comes after each token."""

    def change(batch: Batch) -> Batch:
        apart = batch["attention_mask"] == 0
        shown = apart | apart.transpose(2, 3)
        return {"attention_mask": torch.zeros(shown.shape).masked_fill(~shown, torch.finfo(torch.float32).min)}

    _packing(script, change)


@mistake("loss_oracle")
def documents_run_on(script: Script) -> None:
    """A packed document's first token is learned, which the end of another one is to predict."""

    def change(batch: Batch) -> Batch:
        ids = batch["input_ids"]
        return {"labels": torch.cat([torch.full((1, 1), IGNORED), ids[:, 1:]], dim=1)}

    _packing(script, change)


@mistake("mask_and_positions")
def packed_positions_still(script: Script) -> None:
    """All tokens of packed rows stand at position 0."""
    _packing(script, lambda batch: {"position_ids": torch.zeros_like(batch["input_ids"])})
