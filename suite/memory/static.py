"""What a run keeps on the card from its first step to its last: exact bytes, by arithmetic on its configuration alone.

Standard library only. The bytes are those of the tensors; an allocator rounds each of them up.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import TYPE_CHECKING

from suite.errors import Unsupported
from suite.strategies import STRATEGIES
from suite.strategies.lora import target_layers

if TYPE_CHECKING:
    from suite.config.model import Architecture
    from suite.config.schema import Run

Shape = tuple[int, ...]

ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
KNOWN_TYPES = ("llama", "mistral", "qwen2")
"""Values of model_type whose tensors are enumerated here; a test holds each against transformers' own model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticBytes:
    """Bytes by kind between two steps, gradients included as they are at the end of a backward pass."""

    quantised_weights: int
    """Packed 4-bit weights with both levels of statistics and their tables."""
    other_weights: int
    """Every other weight in its real dtype; where some of them learn all are fp32."""
    adapters: int
    gradients: int
    """One a trained tensor, in its dtype."""
    optimizer: int
    """AdamW: two moments a trained tensor in its dtype, and a 4-byte count of steps."""
    on_host: int = 0
    """All of the above where `training.offload: parameters` keeps it on the CPU; then none of it is on the card."""

    @property
    def weights(self) -> int:
        """What is there after loading, before adapters."""
        return self.quantised_weights + self.other_weights

    @property
    def total(self) -> int:
        """All kinds together, of the card."""
        return self.weights + self.adapters + self.gradients + self.optimizer


def assumed_precision(run: Run) -> str:
    """bf16, fp16 or fp32 on the card. auto counts as bf16, which it is from compute capability 8.0 on."""
    return "bf16" if run.training.precision == "auto" else run.training.precision


def static_bytes(run: Run) -> StaticBytes:
    """The run's bytes by kind. Raises Unsupported for an architecture or a target module that is not known."""
    shapes = tensor_shapes(run.model.architecture)
    element_bytes = 4 if run.trains_base else ELEMENT_BYTES[assumed_precision(run)]
    packed = {name for name, shape in shapes.items() if run.quantization and is_layer_linear(name, shape)}
    double_quant = bool(run.quantization and run.quantization.double_quant)
    trained = trained_shapes(run, shapes)
    # What learns is fp32, but for adapters in the model's own dtype.
    trained_bytes = sum(map(prod, trained)) * (element_bytes if run.lora and run.lora.adapter_dtype == "model" else 4)
    there = StaticBytes(
        quantised_weights=sum(packed_bytes(prod(shapes[name]), double_quant) for name in packed),
        other_weights=element_bytes * sum(prod(shape) for name, shape in shapes.items() if name not in packed),
        adapters=trained_bytes if run.lora else 0,
        gradients=trained_bytes,
        optimizer=2 * trained_bytes + 4 * len(trained),
    )
    if run.training.offload != "parameters":
        return there
    return StaticBytes(quantised_weights=0, other_weights=0, adapters=0, gradients=0, optimizer=0, on_host=there.total)


def tensor_shapes(architecture: Architecture) -> dict[str, Shape]:
    """Name and shape of every weight as the weight file has them; a tied head is not among them. Raises Unsupported."""
    if architecture.model_type not in KNOWN_TYPES:
        raise Unsupported(
            f"model.architecture.model_type is {architecture.model_type!r}: its tensors are not known by arithmetic, "
            f"only those of {', '.join(KNOWN_TYPES)}; add it to suite/memory/static.py"
        )
    extra = architecture.model_extra or {}
    hidden, inner = architecture.hidden_size, architecture.intermediate_size
    head = extra.get("head_dim") or hidden // architecture.num_attention_heads
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
    biased = _biased(architecture.model_type, extra)
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


def trained_shapes(run: Run, shapes: dict[str, Shape]) -> list[Shape]:
    """The shapes of all that the run trains, of a model whose weights have these. Raises Unsupported."""
    if run.lora is not None:
        return adapter_shapes(run, shapes)
    return [shapes[name] for name in sorted(STRATEGIES[run.strategy].expected_trainable(run, list(shapes)))]


def adapter_shapes(run: Run, shapes: dict[str, Shape]) -> list[Shape]:
    """The shapes of lora_A [r, in], lora_B [out, r] and, with DoRA, the magnitude [out] of every target.

    Empty without adapters. Raises Unsupported.
    """
    if run.lora is None:
        return []
    rank, dora = run.lora.r, run.lora.use_dora
    linears = [name for name, shape in shapes.items() if is_layer_linear(name, shape)]
    targets = [shapes[f"{module}.weight"] for module in target_layers(run, linears)]
    parts = [((rank, columns), (rows, rank), *([(rows,)] if dora else [])) for rows, columns in targets]
    return [shape for adapter in parts for shape in adapter]


def is_layer_linear(name: str, shape: Shape) -> bool:
    """Every matrix inside a decoder layer is a linear; embedding and head lie outside and stay as they are."""
    return ".layers." in name and name.endswith(".weight") and len(shape) == 2


def packed_bytes(elements: int, double_quant: bool, block_size: int = 64) -> int:
    """Bytes of one linear of this many weights: packed, statistics, and the small tables (QLoRA, arXiv 2305.14314).

    With double quantisation: n/2 + ceil(n/64) one-byte scales + 4 bytes per 256 of them + the 1024-byte code + the
    4-byte offset; without: n/2 + 4 ceil(n/64). The 64-byte table of the data type is counted in both.
    """
    scales = ceil(elements / block_size)
    outer = scales + 4 * ceil(scales / 256) + 1024 + 4
    return elements // 2 + (outer if double_quant else 4 * scales) + 64


def _biased(model_type: str, extra: dict[str, object]) -> set[str]:
    """The linears that have a bias: q, k and v in Qwen2; in Llama what attention_bias and mlp_bias say."""
    if model_type == "qwen2":
        return {"q_proj", "k_proj", "v_proj"}
    attention = {"q_proj", "k_proj", "v_proj", "o_proj"} if extra.get("attention_bias") else set()
    return attention | ({"gate_proj", "up_proj", "down_proj"} if extra.get("mlp_bias") else set())
