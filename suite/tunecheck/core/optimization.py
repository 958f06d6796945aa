"""What the optimizer is to do: learning-rate schedules in closed form, and which trained tensors decay."""

import math
from collections.abc import Collection
from typing import Literal


def learning_rate(applied_steps: int, peak: float, schedule: str, warmup_steps: int, max_steps: int) -> float:
    """Return the next step's rate: warm-up from 0, then constant, linear or half a cosine to 0, as by get_scheduler."""
    if applied_steps < warmup_steps:
        return peak * applied_steps / warmup_steps
    if schedule == "constant":
        return peak
    progress = (applied_steps - warmup_steps) / max(1, max_steps - warmup_steps)
    return peak * max(0.0, 1 - progress if schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2)


DecayedTensors = Literal["all", "all_but_norms_and_biases"]


def decays(name: str, tensors: str | Collection[str]) -> bool:
    """Return whether the tensor of this name decays, where `tensors` do: those of these names, or a kind by name."""
    # BERT's norms are LayerNorm, GPT-2's ln_1 and ln_f; T5's positions are weights of a relative_attention_bias
    if not isinstance(tensors, str):
        return name in tensors
    parts = name.lower().split(".")
    norm = any(part.endswith("norm") or part.startswith("ln_") for part in parts)
    return tensors == "all" or not (norm or any("bias" in part for part in parts))
