"""Names and shapes of a model's weights, by arithmetic from its configuration alone."""

from math import ceil

from tunecheck.core.errors import Unsupported
from tunecheck.models.description import Architecture

Shape = tuple[int, ...]

KNOWN_TYPES = ("llama", "mistral", "qwen2")
"""Values of model_type whose tensors are enumerated here; a test compares each with transformers' own model."""


def tensor_shapes(architecture: Architecture) -> dict[str, Shape]:
    """Return name and shape of every weight as in the weight file, without a tied head. Raises Unsupported."""
    if architecture.model_type not in KNOWN_TYPES:
        why = f"model.architecture.model_type is {architecture.model_type!r}: its tensors cannot be enumerated"
        raise Unsupported(f"{why}, only those of {', '.join(KNOWN_TYPES)}; add it to suite/tunecheck/models/shapes.py")
    extra = architecture.model_extra or {}
    hidden, inner = architecture.hidden_size, architecture.intermediate_size
    head = architecture.head_width
    query, value = head * architecture.num_attention_heads, head * architecture.num_key_value_heads
    linears = {
        "self_attn.q_proj": (query, hidden),
        "self_attn.k_proj": (value, hidden),
        "self_attn.v_proj": (value, hidden),
        "self_attn.o_proj": (hidden, query),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    biased = {"q_proj", "k_proj", "v_proj"}  # in Qwen2; Llama is configured
    if architecture.model_type != "qwen2":
        biased = {"q_proj", "k_proj", "v_proj", "o_proj"} if extra.get("attention_bias") else set()
        biased |= {"gate_proj", "up_proj", "down_proj"} if extra.get("mlp_bias") else set()
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (architecture.vocab_size, hidden)}
    for layer in range(architecture.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        for name, shape in linears.items():
            shapes[f"{prefix}{name}.weight"] = shape
            if name.rpartition(".")[2] in biased:
                shapes[f"{prefix}{name}.bias"] = shape[:1]
        shapes[f"{prefix}input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    if not architecture.tie_word_embeddings:
        shapes["lm_head.weight"] = (architecture.vocab_size, hidden)
    return shapes


def is_layer_linear(name: str, shape: Shape) -> bool:
    """Return whether this is a linear's matrix inside a decoder layer; embedding and head lie outside."""
    return ".layers." in name and name.endswith(".weight") and len(shape) == 2


def packed_bytes(elements: int, double_quant: bool, block_size: int = 64) -> int:
    """Return the bytes of one 4-bit linear: packed weights, statistics, small tables (QLoRA, arXiv 2305.14314).

    With double quantisation: n/2 + ceil(n/64) one-byte scales + 4 bytes per 256 of them + the 1024-byte code + the
    4-byte offset; without: n/2 + 4 ceil(n/64). The 64-byte table of the data type is counted in both.
    """
    scales = ceil(elements / block_size)
    outer = scales + 4 * ceil(scales / 256) + 1024 + 4
    return elements // 2 + (outer if double_quant else 4 * scales) + 64
