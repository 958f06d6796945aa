"""Attention: heads, rotary positions, window, softmax."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.detection.bugs.bug import bug

if TYPE_CHECKING:
    from collections.abc import Callable

    from tunecheck.training.session import Session

unseen = partial(bug, cohort="unseen-fourth", source="thought up, not from a thread")


def _around_attention(session: Session, change: Callable[..., Any]) -> None:
    """Replace transformers' attention by `change(attention, module, query, key, value, mask, **options)`."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name = session.model.config._attn_implementation
    ALL_ATTENTION_FUNCTIONS[name] = partial(change, ALL_ATTENTION_FUNCTIONS[name])


def _layers(session: Session) -> Any:
    return session.model.get_decoder().layers


@unseen(
    "Z01",
    "Scores are divided by the width of a head instead of its root",
    caught_by="forward_matches_architecture",
    must_say="The attention's scores are scaled otherwise than the architecture says.",
)
def scores_over_head_width(session: Session) -> None:
    """Scale every layer's attention scores by 1 / d, as muP does and this architecture does not."""
    for layer in _layers(session):
        layer.self_attn.scaling = 1 / layer.self_attn.head_dim


@unseen(
    "Z16",
    "Rotary frequencies reach the last exponent",
    caught_by=("forward_matches_architecture", "base_matches_file"),
    must_say="Positions are encoded with other frequencies than the architecture's.",
)
def inclusive_frequencies(session: Session) -> None:
    """Space the exponents from 0 to 1 inclusive; the buffer keeps the right frequencies."""
    import torch

    rotary = session.model.get_decoder().rotary_emb
    base = session.model.config.rope_parameters["rope_theta"]

    def forward(x: Any, position_ids: Any) -> tuple[Any, Any]:
        count = rotary.inv_freq.numel()
        frequencies = base ** -torch.linspace(0, 1, count, device=x.device)
        angles = position_ids[..., None].float() * frequencies
        both = torch.cat((angles, angles), dim=-1)
        return both.cos().to(x.dtype), both.sin().to(x.dtype)

    rotary.forward = forward


@unseen(
    "Z17",
    "The last key head is not rotated",
    caught_by=("forward_matches_architecture",),
    must_say="Keys of a layer carry no positions.",
)
def last_key_head_unrotated(session: Session) -> None:
    """Rotate all heads of the keys but the last, as a kernel launched for one head too few."""
    import torch
    from transformers.models.llama import modeling_llama

    rotate: Any = modeling_llama.apply_rotary_pos_emb

    def without_last(q: Any, k: Any, cos: Any, sin: Any, *rest: Any) -> tuple[Any, Any]:
        rotated_q, rotated_k = rotate(q, k, cos, sin, *rest)
        return rotated_q, torch.cat((rotated_k[:, :-1], k[:, -1:]), dim=1)

    modeling_llama.apply_rotary_pos_emb = without_last


@unseen(
    "Z18",
    "Query heads read each other's key heads",
    caught_by="forward_matches_architecture",
    must_say="Attention's heads are grouped otherwise than the architecture says.",
)
def interleaved_groups(session: Session) -> None:
    """Give query head h the key head h modulo their number instead of h divided by the group's size."""

    def interleaved(attention: Any, module: Any, query: Any, *rest: Any, **options: Any) -> Any:
        groups = module.num_key_value_groups
        heads = [place for first in range(groups) for place in range(first, query.shape[1], groups)]
        back = sorted(range(len(heads)), key=heads.__getitem__)
        output, weights = attention(module, query[:, back], *rest, **options)
        return output[:, :, heads], weights

    _around_attention(session, interleaved)


@unseen(
    "Z19",
    "Attention sees the last 48 tokens only while training",
    caught_by=("loss_oracle", "forward_matches_architecture", "attention_as_configured", "gradient_matches_loss"),
    must_say="The training's forward pass is not the model's: attention, or the loss of a window, is another.",
)
def window_in_training(session: Session) -> None:
    """Mask what lies 48 tokens back or more, in train mode alone."""
    import torch

    def windowed(attention: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        if module.training:
            length = query.shape[2]
            band = torch.ones(length, length, dtype=torch.bool, device=query.device).tril().triu(-47)[None, None]
            if mask is None:
                mask = band
            else:
                mask = mask & band if mask.dtype == torch.bool else mask.masked_fill(~band, torch.finfo(mask.dtype).min)
        return attention(module, query, key, value, mask, **options)

    _around_attention(session, windowed)


@unseen(
    "Z23",
    "One layer's attention drops a tenth",
    caught_by=("dropout_varies", "loss_oracle", "forward_deterministic", "accumulation_oracle"),
    must_say="Something drops activations in training that the run does not configure, or the loss is not the model's.",
)
def attention_drops(session: Session) -> None:
    """Set the last layer's attention_dropout to 0.1: it acts in train mode alone."""
    _layers(session)[-1].self_attn.attention_dropout = 0.1


@unseen(
    "Z42",
    "One head's softmax has a one in its denominator",
    caught_by="forward_matches_architecture",
    must_say="Attention of the last layer is not the architecture's.",
)
def softmax_plus_one(session: Session) -> None:
    """Divide the weights of one head of the last layer by 1 + their sum, an attention sink that nobody asked for."""
    import torch

    last = len(_layers(session)) - 1

    def with_sink(attention: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        output, weights = attention(module, query, key, value, mask, **options)
        if module.layer_idx == last:
            scores = (query[:, 0] @ key[:, 0].transpose(-1, -2)).float() * module.scaling
            causal = torch.ones_like(scores, dtype=torch.bool).tril()
            total = scores.masked_fill(~causal, -torch.inf).logsumexp(-1).sigmoid()  # e^l / (1 + e^l)
            head = output[:, :, :1] * total[..., None, None].to(output.dtype)
            output = torch.cat((head, output[:, :, 1:]), dim=2)
        return output, weights

    _around_attention(session, with_sink)
