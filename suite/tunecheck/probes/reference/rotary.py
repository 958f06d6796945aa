"""The frequencies by which positions turn, in closed form: they are no parameters, so no file vouches for them.

Formulas: 2104.09864 for theta^(-2i/d), 2306.15595 for positions divided by a factor, and Llama 3.1's reference code for
its own scaling. Imports torch.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch

from tunecheck.models.description import Architecture

MODEL_TYPES = frozenset(
    {*("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2", "olmo", "olmo2")}
)
"""Architectures that turn the whole of each head by one table, in all layers alike."""
TOLERANCE = 1e-3
"""Relative: fp32 frequencies of other implementations differ by 1e-6, those of another base by more."""


def wrong_frequencies(model: Any, architecture: Architecture) -> Iterator[str]:
    """Yield the model's buffers of inverse frequencies that are not their closed form, where that is known."""
    wanted = inverse_frequencies(architecture)
    if wanted is None:
        return
    for name, buffer in model.named_buffers():
        if name.endswith("inv_freq"):
            held = buffer.float().cpu()
            if held.shape != wanted.shape or not torch.allclose(held, wanted, rtol=TOLERANCE, atol=0):
                yield name


def inverse_frequencies(architecture: Architecture) -> torch.Tensor | None:
    """Return the frequencies [head_dim / 2] in radians a position, in fp32; None where their form is not known."""
    if architecture.model_type not in MODEL_TYPES:
        return None
    further = architecture.model_extra or {}
    head_dim = further.get("head_dim") or architecture.hidden_size // architecture.num_attention_heads
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    scaling = further.get("rope_scaling") or further.get("rope_parameters") or {}
    plain: torch.Tensor = scaling.get("rope_theta", architecture.rope_theta) ** -exponents
    match scaling.get("rope_type", scaling.get("type", "default")):
        case "default":
            return plain.float()
        case "linear":
            return (plain / float(scaling["factor"])).float()
        case "llama3":
            return _as_llama_3(plain, scaling).float()
    return None


def _as_llama_3(plain: torch.Tensor, scaling: dict[str, Any]) -> torch.Tensor:
    """Divide frequencies that turn less than `low_freq_factor` times in the first context, and blend up to the high."""
    turns = scaling["original_max_position_embeddings"] * plain / (2 * math.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    kept: torch.Tensor = ((turns - low) / (high - low)).clamp(0, 1)
    return kept * plain + (1 - kept) * plain / float(scaling["factor"])
