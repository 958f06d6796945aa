"""The held-out bugs that are in the model itself; see unseen.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from benchmarks.detection.bugs.parts import after_step, decoder, layers, lora_parameters

if TYPE_CHECKING:
    from suite.training.session import Session


def rotary_base_of_another_model(session: Session) -> None:
    """Rotary frequencies are those of half the base."""
    rotary = decoder(session).rotary_emb
    base = session.run.model.architecture.rope_theta / 2
    size = 2 * len(rotary.inv_freq)
    exponents = torch.arange(0, size, 2, device=rotary.inv_freq.device) / size
    rotary.inv_freq.copy_(base**-exponents)


def positions_end_early(session: Session) -> None:
    """Tokens beyond the 32nd all stand at position 31, as with a table that is too short."""
    rotary = decoder(session).rotary_emb
    inner = rotary.forward
    rotary.forward = lambda hidden, position_ids: inner(hidden, position_ids.clamp(max=31))


def sliding_window(session: Session) -> None:
    """Attention reaches 24 tokens back, as in another model of the family."""
    for layer in layers(session):
        inner = layer.forward

        def forward(hidden: torch.Tensor, *args: Any, inner: Any = inner, **kwargs: Any) -> Any:
            size = hidden.shape[1]
            back = torch.arange(size)[:, None] - torch.arange(size)
            seen = (back >= 0) & (back < 24)
            mask = torch.zeros(1, 1, size, size).masked_fill(~seen, torch.finfo(hidden.dtype).min)
            return inner(hidden, *args, **{**kwargs, "attention_mask": mask.to(hidden)})

        layer.forward = forward


def key_heads_in_another_order(session: Session) -> None:
    """Grouped keys and values are tiled, not repeated: query heads read another group's."""
    architecture = session.run.model.architecture
    groups = architecture.num_key_value_heads
    repeats = architecture.num_attention_heads // groups
    for layer in layers(session):
        projection = layer.self_attn.q_proj

        def tiled(_module: Any, _args: Any, out: Any) -> Any:
            return out.unflatten(-1, (repeats, groups, -1)).transpose(-3, -2).flatten(-3)

        projection.register_forward_hook(tiled)
        layer.self_attn.o_proj.register_forward_pre_hook(
            lambda _m, args: (args[0].unflatten(-1, (groups, repeats, -1)).transpose(-3, -2).flatten(-3),)
        )


def adapters_on_other_modules(session: Session) -> None:
    """The adapters are on k_proj where the run says v_proj."""
    for layer in layers(session):
        attention = layer.self_attn
        wrapped = attention.v_proj
        attention.v_proj, wrapped.base_layer = wrapped.base_layer, attention.k_proj
        attention.k_proj = wrapped


def same_a_everywhere(session: Session) -> None:
    """The seed is set again for each adapter: all A of one shape hold the same numbers."""
    first: dict[torch.Size, torch.Tensor] = {}
    with torch.no_grad():
        for _, parameter in lora_parameters(session, "lora_A"):
            parameter.copy_(first.setdefault(parameter.shape, parameter.detach().clone()))


def a_starts_too_large(session: Session) -> None:
    """A is drawn a hundred times too large: with B at 0 the function is the same, and then each step is too long."""
    with torch.no_grad():
        for _, parameter in lora_parameters(session, "lora_A"):
            parameter.mul_(100)


def noisy_embeddings(session: Session) -> None:
    """Embeddings get noise in train mode (NEFTune), though nobody asked for it."""

    def noisy(module: Any, _args: Any, out: torch.Tensor) -> torch.Tensor:
        return out + 1e-3 * torch.rand_like(out) if module.training else out

    session.model.get_input_embeddings().register_forward_hook(noisy)


def recomputed_with_other_masks(session: Session) -> None:
    """Checkpointed layers are computed again without the random state of the first time."""
    session.model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})


def hooks_pile_up(session: Session) -> None:
    """Every step registers a hook that nobody removes: each forward takes longer than the one before it."""
    norm = decoder(session).norm
    after_step(session, lambda: norm.register_forward_hook(lambda _m, _a, out: None) and None)


def repetition_penalty_left_on(session: Session) -> None:
    """The model's generation settings hold a repetition penalty."""
    session.model.generation_config.repetition_penalty = 1.5
