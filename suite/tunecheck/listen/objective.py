"""What is trained: a causal language model on its own tokens, or something whose loss nothing here can compute.

Of the latter only what holds for every training is judged: which tensors learn, how the optimizer moves them, modes,
rates, what is left unchanged. Imports nothing of the training libraries.
"""

from collections.abc import Mapping, Sequence
from typing import Any

NO_WHOLE_GRADIENT = "optimizers step within the backward pass, so the full gradient never exists"
"""What LOMO (arXiv 2306.09782) does."""
CLIPPED_IN_WINDOW = "gradients are clipped before the last backward pass of a step, and are not the sum over its rows"
_OWN_LOSSES = ("SFTTrainer",)
"""TRL's trainers whose loss is the mean over the supervised tokens."""


def other_objective(model: Any, micro_batches: Sequence[Mapping[str, Any]], trainer: type | None = None) -> str:
    """Return why this is not the training of a causal language model on its own tokens; "" where it is."""
    if trainer is not None:
        own = next((base.__name__ for base in trainer.__mro__ if base.__module__.startswith("trl.")), None)
        if own is not None and own not in _OWN_LOSSES and not own.startswith("_"):
            return f"{own} trains another objective than the mean token loss"
    if reason := other_model(model):
        return reason
    for given in micro_batches:
        ids, labels = given.get("input_ids"), given.get("labels")
        if ids is None or labels is None:
            return f"the model receives {', '.join(sorted(given))}, but not both input_ids and labels"
        if labels.shape != ids.shape:
            return f"labels of shape {list(labels.shape)} do not match tokens of shape {list(ids.shape)}"
        if other := sorted(name for name, value in given.items() if _is_input(name, value)):
            return f"the model receives {', '.join(other)} besides tokens, which tunecheck cannot replay"
    return ""


def other_model(model: Any) -> str:
    """Return why this model of transformers is no causal language model; "" where it may be one."""
    kind = _plain_class(model)
    if any(getattr(config, "is_prompt_learning", False) for config in getattr(model, "peft_config", {}).values()):
        return f"peft prepends virtual tokens to the rows of the {kind}"
    if getattr(model.config, "is_encoder_decoder", False):
        return f"{kind} is an encoder-decoder, whose labels are not its input tokens"
    task = kind.rpartition("For")[2] if "For" in kind else ""
    if task and task not in ("CausalLM", "ConditionalGeneration"):
        return f"{kind} is not a causal language model"
    return ""


def _plain_class(model: Any) -> str:
    """Return the name of the class under peft's."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return type(inner).__name__


def _is_input(name: str, value: Any) -> bool:
    """Return whether this is an input of numbers: pixels, sound, embeddings; a mask may be of numbers, too."""
    return "mask" not in name and bool(getattr(value, "is_floating_point", bool)()) and value.dim() > 1
