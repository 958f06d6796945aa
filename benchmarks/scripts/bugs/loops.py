"""Mistakes in plain loops."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_

from benchmarks.scripts.bugs.mistake import entropy, in_a_loop, mistake
from benchmarks.scripts.script import Script, padded, plain_loop


@mistake("accumulation_oracle", "gradients_cleared")
def loop_never_clears(script: Script) -> None:
    """A loop never calls zero_grad."""
    in_a_loop(clear=False)(script)


@mistake("accumulation_oracle", "loss_oracle")
def loop_loss_shifted_twice(script: Script) -> None:
    """A loop shifts logits and labels and hands them to a loss that shifts."""

    def loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return entropy(model(**batch).logits[:, :-1], batch["labels"][:, 1:], "mean")

    in_a_loop(loss=loss)(script)


@mistake("rows_come_once")
def loop_same_batch(script: Script) -> None:
    """A loop makes its iterator anew in each step."""
    script.loop = lambda script, model, batches: plain_loop(script, model, batches[:1])


@mistake("state_in_training")
def loop_in_eval_mode(script: Script) -> None:
    """A loop leaves the model in eval mode after its evaluation."""
    in_a_loop(around=lambda step, model, optimizer: model.eval())(script)


@mistake("optimizer_coverage", "trainable_moved")
def loop_optimizer_of_half(script: Script) -> None:
    """A loop's optimizer holds a part of what learns."""
    in_a_loop(
        optimizer=lambda model: torch.optim.AdamW(
            [p for name, p in model.named_parameters() if "lora_A" in name], lr=1e-3
        )
    )(script)


@mistake("updates_match_adamw")
def loop_state_lost(script: Script) -> None:
    """A loop clears its optimizer's state after each step."""
    in_a_loop(around=lambda step, model, optimizer: optimizer.state.clear())(script)


@mistake("accumulation_oracle", "loss_oracle")
def loop_loss_without_mask(script: Script) -> None:
    """A loop's own cross entropy learns the prompt and the padding, too."""

    def loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return entropy(model(**batch).logits, batch["input_ids"], "mean")

    in_a_loop(loss=loss)(script)


@mistake("finite")
def loop_loss_overflows(script: Script) -> None:
    """A loop divides by the number of rows that are left, which is 0."""
    in_a_loop(loss=lambda model, batch: model(**batch).loss * math.inf)(script)


@mistake("no_loss_on_padding")
def loop_padding_without_mask(script: Script) -> None:
    """A loop's rows are padded without a mask, and labels are the tokens: the tokenizer alone names the padding."""

    def collate(tokenizer: Any, rows: Any) -> dict[str, torch.Tensor]:
        ids = padded(tokenizer, rows)["input_ids"]
        return {"input_ids": ids, "labels": ids.clone()}

    script.collate = collate
    in_a_loop()(script)


@mistake("trainable_moved")
def loop_rate_rounded_away(script: Script) -> None:
    """The weights are trained in bf16, at a rate that they round away."""
    script.lora, script.dtype = None, torch.bfloat16
    in_a_loop(optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-6))(script)


@mistake("accumulation_oracle")
def loop_means_averaged(script: Script) -> None:
    """A loop divides each micro-batch's mean by their number, however many tokens they have."""
    script.loop = lambda script, model, batches: accumulated(script, model, batches)


@mistake("calls_in_order")
def loop_clipped_in_window(script: Script) -> None:
    """A loop clips after each micro-batch what has been added up so far."""
    script.loop = lambda script, model, batches: accumulated(script, model, batches, clips_each=True)


def accumulated(
    script: Script, model: Any, batches: list[dict[str, torch.Tensor]], *, clips_each: bool = False
) -> None:
    """A loop of two micro-batches a step, clipped after each of them or once."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    model.train()
    for number, batch in enumerate(batches[: 2 * script.steps], start=1):
        (model(**batch).loss / 2).backward()
        if clips_each or number % 2 == 0:
            clip_grad_norm_(model.parameters(), 0.3)
        if number % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
