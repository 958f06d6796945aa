"""Which trained tensors decay, by their names."""

from typing import Literal

DecayedTensors = Literal["all", "all_but_norms_and_biases"]


def decays(name: str, tensors: str) -> bool:
    """Return whether the tensor of this name decays, where `tensors` do: a norm or a bias by its module's name.

    BERT's norms are LayerNorm, GPT-2's ln_1 and ln_f; T5's positions are weights of a relative_attention_bias.
    """
    parts = name.lower().split(".")
    norm = any(part.endswith("norm") or part.startswith("ln_") for part in parts)
    return tensors == "all" or not (norm or any("bias" in part for part in parts))
