"""Healthy scripts whose model is not what its class builds, or whose randomness and adapters are in unusual places."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from benchmarks.scripts.parts import Change, fields, other
from benchmarks.scripts.script import MODEL, loaded, plain_loop


class Beside(nn.Module):
    """A norm with a layer of the script's own beside it."""

    def __init__(self, norm: nn.Module, width: int) -> None:
        super().__init__()
        self.norm, self.linear = norm, nn.Linear(width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the sum of both."""
        return self.norm(hidden) + 0.1 * self.linear(hidden)  # type: ignore[no-any-return]


class Bare(LlamaForCausalLM):  # type: ignore[no-untyped-call]
    """A model whose forward takes tokens, mask and labels alone."""

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
    ) -> Any:
        """Return loss and logits."""
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, labels=labels)


def beside_the_norm(dtype: torch.dtype) -> Any:
    """Return the tiny model with a layer between decoder and head."""
    model = loaded(dtype)
    torch.manual_seed(1)
    model.model.norm = Beside(model.model.norm, model.config.hidden_size).to(dtype)
    return model


def own_head(dtype: torch.dtype) -> Any:
    """Return the tiny model with a head of two layers."""
    model = loaded(dtype)
    torch.manual_seed(1)
    width, tokens = model.config.hidden_size, model.config.vocab_size
    model.lm_head = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, tokens, bias=False)).to(dtype)
    return model


def dropping_attention(dtype: torch.dtype) -> Any:
    """Return the tiny model with dropout in its attention's probabilities, which is no module."""
    return AutoModelForCausalLM.from_pretrained(MODEL, dtype=dtype, attention_dropout=0.1)


UNUSUAL: dict[str, tuple[Change, ...]] = {
    "attention dropout": (fields(base=dropping_attention),),
    "attention dropout, full": (fields(base=dropping_attention, lora=None),),
    "attention dropout, loop": (fields(base=dropping_attention, loop=plain_loop),),
    "embeddings adapted alone": (fields(lora={"r": 4, "target_modules": ["embed_tokens"]}),),
    "GPT-2, dora": (
        other("gpt2", "AutoModelForCausalLM"),
        fields(lora={"r": 4, "target_modules": ["c_attn"], "use_dora": True, "fan_in_fan_out": True}),
    ),
    "layer beside the norm": (fields(base=beside_the_norm, lora=None),),
    "layer beside the norm, loop": (fields(base=beside_the_norm, lora=None, loop=plain_loop),),
    "own head": (fields(base=own_head, lora=None),),
    "own head, loop": (fields(base=own_head, lora=None, loop=plain_loop),),
    "bare forward, loop": (
        fields(base=lambda dtype: Bare.from_pretrained(MODEL, dtype=dtype), lora=None, loop=plain_loop),
    ),
}
