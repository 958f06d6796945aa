"""Tokens per second, and the share of a GPU's peak rate that they make up: model FLOPs utilization.

The operations counted are those that the model's mathematics needs: what gradient checkpointing or a chunked loss
computes again is left out. The formula follows Chowdhery et al. (PaLM, appendix B), with the backward
pass through frozen weights at half its cost, since their own gradients are not computed.
"""

from collections.abc import Collection, Sequence
from statistics import median

from tunecheck.core.evidence import Step
from tunecheck.core.snapshot import ArchitectureSnapshot, RunSnapshot
from tunecheck.models.layer_names import EMBEDDING, HEAD, layer_of

WARM_UP_STEPS, PROBED_STEPS = 2, 20
"""Left out of the rate: kernels are loaded and caches filled in the first ones. In the others probes look at the logits
and the adapters' gradients: what a trainer does in some steps alone, it does in one of these or in an oracle's."""

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
"""Dense bf16 rate with fp32 accumulation by GPU name, from the vendor's datasheets, in 1e12 FLOP/s."""

FORMULA = "2(N+H)+A forward, {backward} backward, {trained}; N linear and H head parameters, A = 2 L T q for attention"


def tokens_per_second(steps: Sequence[Step]) -> float | None:
    """Return the median over the steps after the warm-up; None when there are none. Padding does not count."""
    rates = [step.tokens / step.seconds for step in timed(steps)]
    return median(rates) if rates else None


def timed(steps: Sequence[Step]) -> list[Step]:
    """Return the steps whose time is the training's."""
    return [step for step in steps[PROBED_STEPS:] or steps[WARM_UP_STEPS:] if step.seconds > 0]


def flops_per_token(run: RunSnapshot, row_tokens: float, trainable_parameters: int, trained: Collection[str]) -> float:
    """Return the operations per token of a forward and a backward pass, for rows of this mean length.

    `trained` are the names of the trained tensors. Where they are the base's own, the gradient goes down to the lowest
    layer that has one of them, which is counted whole.
    """
    shape = run.architecture
    layers = shape.num_hidden_layers
    head = shape.vocab_size * shape.hidden_size
    linears, query = _linears(shape)
    attention = 2.0 * row_tokens * query  # of one layer: the causal half of QK and of its product with V
    forward = 2.0 * (layers * sum(linears.values()) + head) + layers * attention
    if run.lora is not None:
        return 2 * forward + layers * attention + 6.0 * trainable_parameters
    lowest = min((number for name in trained if (number := layer_of(name)) is not None), default=layers)
    embedding = any("embed_tokens" in name.split(".") for name in trained)
    passed = layers if embedding else layers - lowest  # the layers that the gradient reaches
    down = 2.0 * (passed * sum(linears.values()) + head) + 2 * passed * attention
    matrices = linears | {(EMBEDDING if shape.tie_word_embeddings else HEAD).split(".")[-2]: head}
    own = 2.0 * sum(matrices.get(name.split(".")[-2], 0) for name in trained if name.endswith(".weight"))
    return forward + down + own


def formula(run: RunSnapshot) -> str:
    """Return the formula of `flops_per_token`, for a reader."""
    if run.lora is not None:
        backward, trained = "2(N+H)+2A (frozen weights have no gradient)", "6 per adapter parameter"
    elif run.strategy == "full":
        backward, trained = "twice that", "no adapters"
    else:
        backward, trained = "2(N+H)+2A from the lowest trained layer up", "2 per weight of a trained linear"
    return FORMULA.format(backward=backward, trained=trained)


def _linears(shape: ArchitectureSnapshot) -> tuple[dict[str, int], int]:
    """Return the parameters of each linear of a layer, and the width of all its queries."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    head_dim = shape.head_dim or hidden // shape.num_attention_heads
    query, value = head_dim * shape.num_attention_heads, head_dim * shape.num_key_value_heads
    outputs = {"q_proj": query, "k_proj": value, "v_proj": value, "o_proj": query}
    mlp = dict.fromkeys(("gate_proj", "up_proj", "down_proj"), inner)
    return {name: hidden * width for name, width in (outputs | mlp).items()}, query


def peak_flops_per_second(gpu: str, precision: str) -> float | None:
    """Return the GPU's datasheet rate for 16-bit arithmetic; None for an unknown GPU, and for fp32.

    The whole name counts: an L40 is no L4, and a MIG instance or a laptop's GPU is not the whole one.
    """
    rate = PEAK_TFLOPS_16BIT.get(gpu)
    return None if precision == "fp32" or rate is None else rate * 1e12
