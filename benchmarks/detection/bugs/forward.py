"""Forward passes that are not those of the architecture, though every weight is right."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, cast

import torch

from benchmarks.detection.bugs.parts import after_step, decoder, layers

if TYPE_CHECKING:
    from suite.training.session import Session


def future_tokens_visible(session: Session) -> None:
    """Attention is not causal."""
    for layer in layers(session):
        inner = layer.forward

        def forward(hidden: torch.Tensor, *args: Any, inner: Any = inner, **kwargs: Any) -> Any:
            ones = torch.zeros(hidden.shape[0], 1, hidden.shape[1], hidden.shape[1], dtype=hidden.dtype)
            return inner(hidden, *args, **{**kwargs, "attention_mask": ones.to(hidden.device)})

        layer.forward = forward


def mask_inverted(session: Session) -> None:
    """The attention mask is 1 where there is padding."""

    def invert(_module: Any, args: Any, kwargs: Any) -> Any:
        mask = kwargs.get("attention_mask")
        return args, kwargs if mask is None else {**kwargs, "attention_mask": 1 - mask}

    decoder(session).register_forward_pre_hook(invert, with_kwargs=True)


def layer_skipped(session: Session) -> None:
    """The last layer hands on what it is given, plus a thousandth of its own, so that gradients flow."""
    layers(session)[-1].register_forward_hook(lambda _m, args, out: args[0] + 1e-3 * (out - args[0]))


def layers_in_another_order(session: Session) -> None:
    """The first and the last layer are called in each other's place; names and weights stay right."""
    first, last = layers(session)[0], layers(session)[-1]
    first.forward, last.forward = last.forward, first.forward


def positions_all_zero(session: Session) -> None:
    """Every token stands at position 0."""
    rotary = decoder(session).rotary_emb
    inner = rotary.forward
    rotary.forward = lambda hidden, position_ids: inner(hidden, torch.zeros_like(position_ids))


def positions_doubled(session: Session) -> None:
    """Positions count by two, as when they are computed in two places."""
    rotary = decoder(session).rotary_emb
    inner = rotary.forward
    rotary.forward = lambda hidden, position_ids: inner(hidden, 2 * position_ids)


def attention_scaled_wrongly(session: Session) -> None:
    """Scores are divided by the head dimension, not by its root."""
    for layer in layers(session):
        layer.self_attn.scaling = layer.self_attn.scaling**2


def attention_dropout(session: Session) -> None:
    """A tenth of the attention weights is dropped while training."""
    for layer in layers(session):
        layer.self_attn.attention_dropout = 0.1


def another_activation(session: Session) -> None:
    """The MLP uses GELU where the architecture says SiLU."""
    for layer in layers(session):
        layer.mlp.act_fn = torch.nn.GELU()


def norm_epsilon_wrong(session: Session) -> None:
    """The norms' epsilon is 1e-2: it counts only where activations are small."""
    for module in session.model.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = 1e-2


def embedding_scaled(session: Session) -> None:
    """Embeddings are multiplied by 1.1, as for another architecture by the root of its width."""
    session.model.get_input_embeddings().register_forward_hook(lambda _m, _a, out: out * 1.1)


def logits_scaled(session: Session) -> None:
    """Logits are divided by a temperature of 1.1."""
    session.model.get_output_embeddings().register_forward_hook(lambda _m, _a, out: out / 1.1)


def backward_of_a_norm_wrong(session: Session) -> None:
    """A fused kernel's forward is right and its backward forgets half of the gradient in one layer."""

    class Kernel(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 0.5

    kernel: Any = Kernel
    layers(session)[-1].post_attention_layernorm.register_forward_hook(lambda _m, _a, out: kernel.apply(out))


def noise_in_forward(session: Session) -> None:
    """The final norm adds noise."""
    norm = decoder(session).norm
    inner = norm.forward
    norm.forward = lambda hidden: inner(hidden) + 1e-3 * torch.randn_like(hidden)


def another_attention(session: Session) -> None:
    """The configuration says sdpa, and the layers are handed the eager implementation."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.llama.modeling_llama import eager_attention_forward

    ALL_ATTENTION_FUNCTIONS["sdpa"] = eager_attention_forward


def activations_in_fp32(session: Session) -> None:
    """An adapter's fp32 output promotes the hidden states, and from there on all of them are fp32."""
    layers(session)[0].register_forward_hook(lambda _m, _a, out: out.float())
    decoder(session).norm.register_forward_hook(lambda norm, _a, out: out.to(norm.weight.dtype))


def cached_positions_drift(session: Session) -> None:
    """With a cache, every second generated token is given the position of the one before it."""
    rotary = decoder(session).rotary_emb
    inner = rotary.forward

    def drifting(hidden: torch.Tensor, position_ids: torch.Tensor) -> Any:
        return inner(hidden, position_ids // 2 * 2 if position_ids.shape[-1] == 1 else position_ids)

    rotary.forward = drifting


class _ScaleHeldConstant(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        scale = torch.rsqrt(hidden.float().square().mean(-1, keepdim=True) + epsilon)
        ctx.save_for_backward(weight * scale)
        return weight * (hidden.float() * scale).to(hidden.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        [factor] = ctx.saved_tensors
        return (gradient * factor).to(gradient.dtype), None, None


def last_norm_a_constant_backwards(session: Session) -> None:
    """The last norm's own backward pass takes the root mean square for a constant: its gradient lacks a term."""
    norm, kernel = decoder(session).norm, cast(Any, _ScaleHeldConstant)
    norm.forward = lambda hidden: kernel.apply(hidden, norm.weight, norm.variance_epsilon)


def stale_copy_of_a_weight(session: Session) -> None:
    """The last down projection computes with a copy of its weight, which is made anew after every second step."""
    linear = layers(session)[-1].mlp.down_proj
    copies: list[torch.Tensor] = []
    steps = count()

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        if not copies:
            copies.append(linear.weight.detach().clone())
        followed = copies[0] + (linear.weight - linear.weight.detach())  # the copy's numbers, the weight's gradient
        return torch.nn.functional.linear(hidden, followed)

    def renew() -> None:
        if next(steps) % 2:
            copies.clear()

    linear.forward = forward
    after_step(session, renew)
