"""Mistakes in the loss that a Trainer is given."""

from __future__ import annotations

import torch

from benchmarks.scripts.bugs.mistake import entropy, mistake, with_loss
from benchmarks.scripts.parts import masked_tokens, other
from benchmarks.scripts.script import IGNORED, Script


@mistake("no_target_leakage", "loss_oracle", "accumulation_oracle")
def loss_not_shifted(script: Script) -> None:
    """compute_loss compares each token with itself."""
    script.trainer = with_loss(
        lambda logits, labels, items: (
            torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
            )
            / items
        )
    )


@mistake("loss_oracle", "accumulation_oracle")
def means_averaged(script: Script) -> None:
    """compute_loss takes the mean of each micro-batch, whatever its number of tokens."""
    script.trainer = with_loss(lambda logits, labels, items: entropy(logits, labels, "mean") / 2)


@mistake("loss_normalised_over_accumulation", "loss_oracle", "accumulation_oracle")
def not_divided_by_accumulation(script: Script) -> None:
    """compute_loss returns a mean, which nobody divides by the accumulation steps."""
    script.trainer = with_loss(lambda logits, labels, items: entropy(logits, labels, "mean"))


@mistake("loss_normalised_over_accumulation")
def penalised_and_not_divided(script: Script) -> None:
    """compute_loss adds a penalty to the mean, and nobody divides either by the accumulation steps."""
    script.trainer = with_loss(
        lambda logits, labels, items: entropy(logits, labels, "mean") + 1e-4 * logits.logsumexp(-1).square().mean()
    )


@mistake("loss_normalised_over_accumulation")
def head_leaves_the_number_out(script: Script) -> None:
    """A head of transformers' takes the number of the window's labels, and leaves it out (its issue 47688)."""
    other("bert", "AutoModelForMaskedLM", is_decoder=False)(script)
    masked_tokens(script)
    script.arguments["gradient_accumulation_steps"] = 2


@mistake("loss_oracle", "accumulation_oracle")
def loss_in_bf16(script: Script) -> None:
    """compute_loss takes its cross entropy in bf16."""
    script.trainer = with_loss(lambda logits, labels, items: entropy(logits.bfloat16(), labels).float() / items)


@mistake("loss_oracle", "accumulation_oracle")
def z_loss_added(script: Script) -> None:
    """compute_loss keeps a penalty of the partition function from another project."""
    script.expect = {"loss": "token_mean"}
    script.trainer = with_loss(
        lambda logits, labels, items: (entropy(logits, labels) + 0.05 * logits.logsumexp(-1).square().sum()) / items
    )
