"""Premises: what a check's formula needs in order to be true of a training. Standard library only.

The suite's own runs are built so that every premise holds. Whoever listens to another training says which of them are
open, and why: a check that needs an open premise is not judged. It also says which are presumed, since nothing proves
them: a check that needs one of these suspects where it would fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum


class Premise(StrEnum):
    """A premise, in the order in which an open one is told first."""

    CAUSAL_LM = "causal_lm"
    """Rows and loss are those of a causal language model on its own tokens."""
    ROWS_FOLLOWED = "rows_followed"
    """The attention mask parts documents and hides padding, and does nothing else."""
    POSITIONS_FOLLOWED = "positions_followed"
    """Masks of four dimensions say which position sees which."""
    LABELS_KNOWN = "labels_known"
    """The labels were given to the model, or stand in the loss's graph."""
    EVERY_ROW_SEEN = "every_row_seen"
    """One process sees all rows of a step."""
    ROWS_DRAWN_ONCE = "rows_drawn_once"
    """The sampler gives each row once an epoch."""
    LOSS_DECLARED = "loss_declared"
    """The loss is the library's, or is expected to be its equal."""
    TOKEN_MEAN_LOSS = "token_mean_loss"
    """The loss is the mean over supervised tokens, and nothing else is in it."""
    LOSS_UNSMOOTHED = "loss_unsmoothed"
    """Labels are not smoothed."""
    LOSS_UNSCALED = "loss_unscaled"
    """No factor of a GradScaler is in loss and gradients, or it is known when it is undone."""
    LOSS_REPEATABLE = "loss_repeatable"
    """A second pass over the same rows gives the same loss."""
    FORWARD_REPEATABLE = "forward_repeatable"
    """The training's forward pass computes the model's function, without noise of the script's own."""
    GRADIENT_BY_FORWARD = "gradient_by_forward"
    """Every gradient comes through the model's forward pass."""
    GRADIENT_SUMMED = "gradient_summed"
    """The gradient is the sum of those of its window's micro-batches."""
    GRADIENT_WHOLE = "gradient_whole"
    """The whole gradient exists between the backward pass and the optimizer."""
    GRADIENTS_CLEARED_BEFORE = "gradients_cleared_before"
    """Gradients are cleared before a forward pass."""
    CLIPPED_WHOLE = "clipped_whole"
    """Gradients are clipped by the norm of all of them."""
    NORM_REPORTED = "norm_reported"
    """The trainer reports the gradient's norm."""
    LOSS_REPORTED = "loss_reported"
    """The trainer reports the loss."""
    TOKENS_REPORTED = "tokens_reported"
    """The trainer reports the number of supervised tokens."""
    TRAINED_SET_DECLARED = "trained_set_declared"
    """An object or a person declares which tensors learn."""
    COUNT_DECLARED = "count_declared"
    """The number of trained parameters follows from what is declared."""
    ADAPTERS_ENUMERATED = "adapters_enumerated"
    """Every adapter's name and shape follow from the configuration."""
    ADAPTERS_FRESH = "adapters_fresh"
    """peft made the adapters by its usual initialisation, and nobody trained them."""
    BASE_FROM_FILE = "base_from_file"
    """The base's weights are those of a known safetensors file."""
    BASE_PLAIN = "base_plain"
    """The base's weights are plain numbers, or of bitsandbytes' 4 bit."""
    BASE_UNWRITTEN = "base_unwritten"
    """No code of the script's own writes to tensors that are not trained."""
    TRAINED_UNWRITTEN = "trained_unwritten"
    """No code but the optimizer's writes to trained tensors."""
    UPDATE_RULE_KNOWN = "update_rule_known"
    """The optimizer is AdamW, and its settings and state are known."""
    GROUPS_DECLARED = "groups_declared"
    """It is known which weight decay each tensor is to have."""
    SCHEDULE_KNOWN = "schedule_known"
    """The learning rate of each step has a closed form."""
    ARCHITECTURE_KNOWN = "architecture_known"
    """The model computes what its class computes of its configuration."""
    ATTENTION_DECLARED = "attention_declared"
    """The configuration decides which kernels compute attention."""
    CHECKPOINTING_DECLARED = "checkpointing_declared"
    """The arguments declare gradient checkpointing, and the layers are known."""
    DTYPES_DECLARED = "dtypes_declared"
    """The dtype of each part is declared."""
    DEVICE_DECLARED = "device_declared"
    """The device of the model is declared."""
    FILES_WRITTEN_HERE = "files_written_here"
    """This process is the one that saves."""
    REPEATED = "repeated"
    """The training was run a second time."""
    RESUMED = "resumed"
    """The training was resumed from a checkpoint of itself."""


def opened(premises: Iterable[Premise], reason: str) -> dict[Premise, str]:
    """Return these premises as open for one reason; none without a reason."""
    return dict.fromkeys(premises, reason) if reason else {}


def first_open(needed: Iterable[Premise], open_premises: Mapping[str, str]) -> str:
    """Return why the first of the needed premises is open; "" where all hold."""
    return next((open_premises[premise] for premise in Premise if premise in needed and premise in open_premises), "")
