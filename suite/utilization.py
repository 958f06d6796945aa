"""Tokens a second, and what share of a card's peak rate they are: model FLOPs utilization.

Counted are the operations that the model's mathematics needs, not those that were done: what gradient checkpointing or
a chunked loss computes again is left out. The formula follows Chowdhery et al. (PaLM, appendix B), with the backward
pass through frozen weights at half its cost, since their own gradients are not computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from suite.evidence import Step

WARM_UP_STEPS = 3
"""Left out of the rate: kernels are loaded and caches filled there."""

PEAK_TFLOPS_16BIT = {
    "NVIDIA B200": 2250.0,
    "NVIDIA H200": 989.4,
    "NVIDIA H100 80GB HBM3": 989.4,
    "NVIDIA H100 PCIe": 756.0,
    "NVIDIA A100": 312.0,
    "NVIDIA A30": 165.0,
    "NVIDIA L40S": 362.1,
    "NVIDIA L4": 121.0,
    "NVIDIA RTX A6000": 154.8,
    "NVIDIA GeForce RTX 4090": 165.2,
    "NVIDIA GeForce RTX 3090": 71.0,
}
"""How a card's name begins, to its dense bf16 rate with fp32 accumulation in the vendor's datasheet, in 1e12 FLOP/s."""

FORMULA = "2(N+H)+A forward, {backward} backward, {adapters}; N linear and H head parameters, A = 2 L T q for attention"


def tokens_per_second(steps: Sequence[Step]) -> float | None:
    """Median over the steps after the warm-up; None when there are none. Padding does not count as tokens."""
    rates = [step.tokens / step.seconds for step in steps[WARM_UP_STEPS:] if step.seconds > 0]
    return median(rates) if rates else None


def flops_per_token(run: Mapping[str, Any], row_tokens: float, trainable_parameters: int) -> float:
    """Operations a token of a forward and a backward pass, for rows of this mean length.

    `run` is the resolved configuration as a trace holds it.
    """
    shape = run["model"]["architecture"]
    hidden, layers = shape["hidden_size"], shape["num_hidden_layers"]
    head_dim = shape.get("head_dim") or hidden // shape["num_attention_heads"]
    query, value = head_dim * shape["num_attention_heads"], head_dim * shape["num_key_value_heads"]
    linear: int = layers * hidden * (2 * query + 2 * value + 3 * shape["intermediate_size"])
    products: float = 2.0 * (linear + shape["vocab_size"] * hidden)
    attention: float = 2.0 * layers * row_tokens * query  # the causal half of QK and of its product with V
    if run["strategy"] == "full":
        return 3 * products + 3 * attention
    return 2 * products + 3 * attention + 6.0 * trainable_parameters


def formula(run: Mapping[str, Any]) -> str:
    """The formula of `flops_per_token`, for a reader."""
    if run["strategy"] == "full":
        return FORMULA.format(backward="twice that", adapters="no adapters")
    return FORMULA.format(backward="2(N+H)+2A (frozen weights have no gradient)", adapters="6 per adapter parameter")


def peak_flops_per_second(card: str, precision: str) -> float | None:
    """The card's datasheet rate for 16-bit arithmetic; None for an unknown card, and for fp32."""
    if precision == "fp32":
        return None
    names = [name for name in PEAK_TFLOPS_16BIT if card.startswith(name)]
    return PEAK_TFLOPS_16BIT[max(names, key=len)] * 1e12 if names else None
