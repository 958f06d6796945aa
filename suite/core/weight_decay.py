"""Which trained tensors decay, by their names."""

from __future__ import annotations

from typing import Literal

DecayedTensors = Literal["all", "all_but_norms_and_biases"]


def decays(name: str, tensors: str) -> bool:
    """Return whether the tensor of this name decays, where `tensors` do: a norm or a bias by its module's name."""
    parts = name.split(".")
    return tensors == "all" or not (parts[-1] == "bias" or any(part.endswith("norm") for part in parts))
