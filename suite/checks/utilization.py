"""Tokens a second, and what share of a card's peak rate they are: model FLOPs utilization.

Counted are the operations that the model's mathematics needs, not those that were done: what gradient checkpointing or
a chunked loss computes again is left out. The formula follows Chowdhery et al. (PaLM, appendix B), with the backward
pass through frozen weights at half its cost, since their own gradients are not computed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import Any

from suite.core.evidence import Step
from suite.models.layer_names import head_name, layer_of

WARM_UP_STEPS = 3
"""Left out of the rate: kernels are loaded and caches filled there."""

PEAK_TFLOPS_16BIT = {
    "NVIDIA B200": 2250.0,
    "NVIDIA H200": 989.4,
    "NVIDIA H100 80GB HBM3": 989.4,
    "NVIDIA H100 PCIe": 756.0,
    **dict.fromkeys(
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe"), 312.0
    ),
    "NVIDIA A30": 165.0,
    "NVIDIA L40S": 362.1,
    "NVIDIA L4": 121.0,
    "NVIDIA RTX A6000": 154.8,
    "NVIDIA GeForce RTX 4090": 165.2,
    "NVIDIA GeForce RTX 3090": 71.0,
}
"""A card's name to its dense bf16 rate with fp32 accumulation in the vendor's datasheet, in 1e12 FLOP/s."""

FORMULA = "2(N+H)+A forward, {backward} backward, {trained}; N linear and H head parameters, A = 2 L T q for attention"


def tokens_per_second(steps: Sequence[Step]) -> float | None:
    """Median over the steps after the warm-up; None when there are none. Padding does not count as tokens."""
    rates = [step.tokens / step.seconds for step in steps[WARM_UP_STEPS:] if step.seconds > 0]
    return median(rates) if rates else None


def flops_per_token(
    run: Mapping[str, Any], row_tokens: float, trainable_parameters: int, trained: Collection[str]
) -> float:
    """Operations a token of a forward and a backward pass, for rows of this mean length.

    `run` is the resolved configuration as a trace holds it, `trained` the names of the tensors that learn. Where they
    are the base's own, the gradient comes down to the lowest layer that has one of them, which is counted whole.
    """
    shape = run["model"]["architecture"]
    layers: int = shape["num_hidden_layers"]
    head: int = shape["vocab_size"] * shape["hidden_size"]
    linears, query = _linears(shape)
    attention = 2.0 * row_tokens * query  # of one layer: the causal half of QK and of its product with V
    forward = 2.0 * (layers * sum(linears.values()) + head) + layers * attention
    if run["lora"] is not None:
        return 2 * forward + layers * attention + 6.0 * trainable_parameters
    passed = layers - _lowest_layer(trained, layers)
    down = 2.0 * (passed * sum(linears.values()) + head) + 2 * passed * attention
    matrices = linears | {head_name(shape["tie_word_embeddings"]).split(".")[-2]: head}
    own = 2.0 * sum(matrices.get(name.split(".")[-2], 0) for name in trained if name.endswith(".weight"))
    return forward + down + own


def formula(run: Mapping[str, Any]) -> str:
    """The formula of `flops_per_token`, for a reader."""
    if run["lora"] is not None:
        backward, trained = "2(N+H)+2A (frozen weights have no gradient)", "6 per adapter parameter"
    elif run["strategy"] == "full":
        backward, trained = "twice that", "no adapters"
    else:
        backward, trained = "2(N+H)+2A from the lowest layer that learns up", "2 per weight of a linear that learns"
    return FORMULA.format(backward=backward, trained=trained)


def _linears(shape: Mapping[str, Any]) -> tuple[dict[str, int], int]:
    """The parameters of each linear of a layer, and the width of all its queries."""
    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    head_dim = shape.get("head_dim") or hidden // shape["num_attention_heads"]
    query, value = head_dim * shape["num_attention_heads"], head_dim * shape["num_key_value_heads"]
    outputs = {"q_proj": query, "k_proj": value, "v_proj": value, "o_proj": query}
    mlp = dict.fromkeys(("gate_proj", "up_proj", "down_proj"), inner)
    return {name: hidden * width for name, width in (outputs | mlp).items()}, query


def _lowest_layer(trained: Collection[str], layers: int) -> int:
    """The lowest layer that the gradient comes to: the first where the embedding learns, `layers` where none does."""
    if any("embed_tokens" in name.split(".") for name in trained):
        return 0
    return min((number for name in trained if (number := layer_of(name)) is not None), default=layers)


def peak_flops_per_second(card: str, precision: str) -> float | None:
    """The card's datasheet rate for 16-bit arithmetic; None for an unknown card, and for fp32.

    The whole name counts: an L40 is no L4, nor a part of a card (MIG) or a laptop's the whole one.
    """
    rate = PEAK_TFLOPS_16BIT.get(card)
    return None if precision == "fp32" or rate is None else rate * 1e12
