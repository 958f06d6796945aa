"""Premises: the facts about a training that a check's formula relies on. Standard library only.

The suite's own runs satisfy every premise. The listener to another training reports which premises are open, and why:
a check that needs an open premise is not judged. It also reports which are presumed, because nothing proves them: a
check that needs one of these raises a suspicion instead of a failure.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum


class Premise(StrEnum):
    """A premise, in the order in which open ones are reported."""

    CAUSAL_LM = "causal_lm"
    """Rows and loss are those of a causal language model on its own tokens."""
    ROWS_FOLLOWED = "rows_followed"
    """The attention mask only separates documents and hides padding."""
    POSITIONS_FOLLOWED = "positions_followed"
    """Four-dimensional masks define which positions attend to each other."""
    LABELS_KNOWN = "labels_known"
    """The labels are an input of the model, or part of the loss's graph."""
    EVERY_ROW_SEEN = "every_row_seen"
    """One process sees all rows of a step."""
    ROWS_DRAWN_ONCE = "rows_drawn_once"
    """The sampler yields each row once per epoch."""
    LOSS_DECLARED = "loss_declared"
    """The library computes the loss, or --expect declares its equal."""
    TOKEN_MEAN_LOSS = "token_mean_loss"
    """The loss is the mean over supervised tokens, without further terms."""
    LOSS_UNSMOOTHED = "loss_unsmoothed"
    """Labels are not smoothed."""
    LOSS_UNSCALED = "loss_unscaled"
    """Loss and gradients contain no GradScaler factor, or its unscaling is recorded."""
    LOSS_REPEATABLE = "loss_repeatable"
    """A second pass over the same rows returns the same loss."""
    FORWARD_REPEATABLE = "forward_repeatable"
    """The forward pass computes the model's function, without noise from the script."""
    GRADIENT_BY_FORWARD = "gradient_by_forward"
    """Every gradient comes from the model's forward pass."""
    GRADIENT_SUMMED = "gradient_summed"
    """The gradient is the sum over the step's micro-batches."""
    GRADIENT_WHOLE = "gradient_whole"
    """The full gradient exists between the backward pass and the optimizer step."""
    GRADIENTS_CLEARED_BEFORE = "gradients_cleared_before"
    """Gradients are cleared before a forward pass."""
    CLIPPED_WHOLE = "clipped_whole"
    """Clipping uses the norm of all gradients together."""
    NORM_REPORTED = "norm_reported"
    """The trainer reports the gradient's norm."""
    LOSS_REPORTED = "loss_reported"
    """The trainer reports the loss."""
    TOKENS_REPORTED = "tokens_reported"
    """The trainer reports the number of supervised tokens."""
    TRAINED_SET_DECLARED = "trained_set_declared"
    """The objects or --expect declare which tensors are trained."""
    COUNT_DECLARED = "count_declared"
    """The declaration determines the number of trained parameters."""
    ADAPTERS_ENUMERATED = "adapters_enumerated"
    """The configuration determines every adapter's name and shape."""
    ADAPTERS_FRESH = "adapters_fresh"
    """peft created the adapters with its default initialisation, and they are untrained."""
    BASE_FROM_FILE = "base_from_file"
    """The base's weights come from a known safetensors file."""
    BASE_PLAIN = "base_plain"
    """The base's weights are plain tensors, or bitsandbytes' 4-bit ones."""
    BASE_UNWRITTEN = "base_unwritten"
    """The script's own code does not write to frozen tensors."""
    TRAINED_UNWRITTEN = "trained_unwritten"
    """Only the optimizer writes to trained tensors."""
    UPDATE_RULE_KNOWN = "update_rule_known"
    """The optimizer is AdamW, and its settings and state are known."""
    GROUPS_DECLARED = "groups_declared"
    """The configured weight decay of each tensor is known."""
    SCHEDULE_KNOWN = "schedule_known"
    """The learning rate of each step has a closed form."""
    ARCHITECTURE_KNOWN = "architecture_known"
    """The model computes its class's function of the configuration."""
    ATTENTION_DECLARED = "attention_declared"
    """The configuration selects the attention kernels."""
    CHECKPOINTING_DECLARED = "checkpointing_declared"
    """The arguments declare gradient checkpointing, and the layers are known."""
    DTYPES_DECLARED = "dtypes_declared"
    """The dtype of each part is declared."""
    DEVICE_DECLARED = "device_declared"
    """The device of the model is declared."""
    FILES_WRITTEN_HERE = "files_written_here"
    """This process saves the files."""
    REPEATED = "repeated"
    """The training ran a second time."""
    RESUMED = "resumed"
    """The training was resumed from a checkpoint of itself."""


def opened(premises: Iterable[Premise], reason: str) -> dict[Premise, str]:
    """Return these premises as open for one reason; empty without a reason."""
    return dict.fromkeys(premises, reason) if reason else {}


def first_open(needed: Iterable[Premise], open_premises: Mapping[str, str]) -> str:
    """Return why the first of the needed premises is open; "" where all hold."""
    return next((open_premises[premise] for premise in Premise if premise in needed and premise in open_premises), "")
