"""What is trained: a causal language model on its own tokens, or something whose loss nothing here can compute.

Of the latter only what holds for every training is judged: which tensors learn, how the optimizer moves them, modes,
rates, what is left unchanged. Imports nothing of the training libraries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ANY_TRAINING = frozenset(
    {
        "as_expected",
        "base_untouched",
        "changed_by_steps_alone",
        "clipping_leaves_gradients",
        "device_as_asked",
        "evaluation_rows_unseen",
        "finite",
        "gradient_norm_reported",
        "gradients_cleared",
        "learning_rate_trace",
        "live_tensors_flat",
        "loss_is_divided",
        "loss_logged",
        "loss_moves",
        "memory_flat",
        "optimizer_coverage",
        "padding_unlearned",
        "pairs_differ",
        "calls_in_order",
        "parameters_counted",
        "randomness_varies",
        "rates_as_declared",
        "replicas_equal",
        "resumed_as_declared",
        "saved_as_trained",
        "schedule_ends",
        "scores_unnormalised",
        "state_fits",
        "state_in_training",
        "steps_applied",
        "targets_unread",
        "throughput_steady",
        "trainable_moved",
        "trainable_set",
        "updates_match_adamw",
        "workers_differ",
    }
)
"""Checks that ask neither what the rows are nor what the loss is."""
BY_WHOLE_GRADIENT = dict.fromkeys(
    ("calls_in_order", "accumulation_oracle", "weight_gradients", "updates_match_adamw", "gradient_norm_reported"),
    "optimizers step within the backward pass, tensor by tensor: the whole gradient never is",
)
"""Checks of the gradient between backward pass and optimizer, which LOMO (arXiv 2306.09782) does without."""
BY_WINDOW = dict.fromkeys(
    ("loss_oracle", "accumulation_oracle", "weight_gradients", "lora_gradient_schedule", "updates_match_adamw"),
    "gradients are clipped before the last backward pass of their window, and are no sum of its rows' gradients",
)
"""Checks of a window's gradient, where a loop clips it after each micro-batch."""
_OWN_LOSSES = ("SFTTrainer",)
"""TRL's trainers whose loss is the mean over the supervised tokens."""


def other_objective(model: Any, micro_batches: Sequence[Mapping[str, Any]], trainer: type | None = None) -> str:
    """Return why this is not the training of a causal language model on its own tokens; "" where it is."""
    if trainer is not None:
        own = next((base.__name__ for base in trainer.__mro__ if base.__module__.startswith("trl.")), None)
        if own is not None and own not in _OWN_LOSSES and not own.startswith("_"):
            return f"{own} trains another objective than the tokens' mean loss"
    if reason := other_model(model):
        return reason
    for given in micro_batches:
        ids, labels = given.get("input_ids"), given.get("labels")
        if ids is None or labels is None:
            return f"the model is given {', '.join(sorted(given))}: no labels beside tokens, from which a loss follows"
        if labels.shape != ids.shape:
            return f"labels of shape {list(labels.shape)} do not belong to tokens of shape {list(ids.shape)}"
        if other := sorted(name for name, value in given.items() if _is_input(name, value)):
            return f"the model is given {', '.join(other)} besides tokens, which nothing here gives it again"
    return ""


def other_model(model: Any) -> str:
    """Return why this model of transformers is no causal language model; "" where it may be one."""
    kind = _plain_class(model)
    if any(getattr(config, "is_prompt_learning", False) for config in getattr(model, "peft_config", {}).values()):
        return f"peft puts virtual tokens before the rows of the {kind}, which they do not hold"
    if getattr(model.config, "is_encoder_decoder", False):
        return f"{kind} is an encoder and a decoder, whose labels are not its input's tokens"
    task = kind.rpartition("For")[2] if "For" in kind else ""
    if task and task not in ("CausalLM", "ConditionalGeneration"):
        return f"{kind} is no causal language model"
    return ""


def _plain_class(model: Any) -> str:
    """Return the name of the class under peft's."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return type(inner).__name__


def _is_input(name: str, value: Any) -> bool:
    """Return whether this is an input of numbers: pixels, sound, embeddings; a mask may be of numbers, too."""
    return "mask" not in name and bool(getattr(value, "is_floating_point", bool)()) and value.dim() > 1
