"""Held-out faults of weights, quantisation and the forward pass. Imports torch; child process only."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint

from benchmarks.detection.bugs.parts import change_attention, decoder, layers
from suite.probes.reference.four_bit import is_packed
from suite.probes.reference.weight_file import WeightFile

if TYPE_CHECKING:
    from suite.training.session import Session

WINDOW_TOKENS = 40
"""Shorter than the longer rows, longer than the others."""


def offset_in_bf16(session: Session) -> None:
    """The offset of the doubly quantised block maxima is kept in bf16, which moves every 4-bit weight a little."""
    for parameter in session.model.parameters():
        if is_packed(parameter) and parameter.quant_state.nested:
            parameter.quant_state.offset = parameter.quant_state.offset.bfloat16().float()


def modules_not_quantised(session: Session) -> None:
    """A pattern of modules to skip matches every down_proj: they hold the file's weights in full, not in 4 bit."""
    file = WeightFile(session.folder)
    for number, layer in enumerate(layers(session)):
        weight = file.tensor(f"model.layers.{number}.mlp.down_proj.weight")
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.float32)
        linear.weight = torch.nn.Parameter(weight.float(), requires_grad=False)
        layer.mlp.down_proj = linear.to(session.device, layer.input_layernorm.weight.dtype)


def head_untied(session: Session) -> None:
    """The head is a copy of the embedding that no optimizer knows: only the embedding learns, the tie is lost."""
    head = session.model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().clone())


def rotary_frequencies_in_bf16(session: Session) -> None:
    """The rotary embedding's inverse frequencies were cast to bf16 with the model, and back."""
    rotary = decoder(session).rotary_emb
    rotary.inv_freq = rotary.inv_freq.bfloat16().float()


def sliding_window(session: Session) -> None:
    """Attention sees the last 40 tokens only, as by another model's sliding window: longer rows lose their start."""

    def windowed(attend: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        tokens = query.shape[2]
        if tokens > WINDOW_TOKENS and key.shape[2] == tokens:
            ones = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device)
            near = ones.tril() & ones.triu(1 - WINDOW_TOKENS)
            mask = near[None, None] if mask is None else mask & near
        return attend(module, query, key, value, mask, **options)

    change_attention(windowed)


def heads_grouped_in_wrong_order(session: Session) -> None:
    """In the last layer keys and values are tiled instead of interleaved, so heads read another group's."""
    last = len(layers(session)) - 1

    def tiled(attend: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        if module.layer_idx == last:
            times = query.shape[1] // key.shape[1]
            key, value = key.repeat(1, times, 1, 1), value.repeat(1, times, 1, 1)
            module = SimpleNamespace(is_causal=True, layer_idx=last)
        return attend(module, query, key, value, mask, **options)

    change_attention(tiled)


def dropout_drawn_again(session: Session) -> None:
    """Checkpointing does not keep the random state: the recomputed forward pass has other dropout masks."""
    for module in session.model.modules():
        if hasattr(module, "_gradient_checkpointing_func"):
            module._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
