"""Forward passes that are not the architecture's, although every weight is right."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from benchmarks.detection.bugs.bug import bug
from benchmarks.detection.bugs.parts import (
    after_evaluation_in_the_middle,
    after_step,
    change_attention,
    counted_steps,
    decoder,
    layers,
)

if TYPE_CHECKING:
    import torch

    from tunecheck.training.session import Session


@bug(
    "B87",
    "Another attention kernel takes over",
    caught_by="attention_as_configured",
    source="huggingface/transformers#46960, facebookresearch/sam2#329",
)
def another_attention(session: Session) -> None:
    """Run the eager attention although the configuration says sdpa."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.llama.modeling_llama import eager_attention_forward

    ALL_ATTENTION_FUNCTIONS["sdpa"] = eager_attention_forward


@bug(
    "B91",
    "An adapter promotes all activations to fp32",
    caught_by="dtypes_as_configured",
    source="mflux-community/mflux#740",
    settings=("training.precision=bf16",),
)
def activations_in_fp32(session: Session) -> None:
    """Promote the hidden states to fp32 from the first layer on, as by an adapter's fp32 output."""
    layers(session)[0].register_forward_hook(lambda _m, _a, out: out.float())
    decoder(session).norm.register_forward_hook(lambda norm, _a, out: out.to(norm.weight.dtype))


@bug("B112", "Noise in the forward pass", caught_by="forward_deterministic", source="huggingface/transformers#25420")
def noise_in_forward(session: Session) -> None:
    """Add noise to the output of the final norm."""
    import torch

    norm = decoder(session).norm
    inner = norm.forward
    norm.forward = lambda hidden: inner(hidden) + 1e-3 * torch.randn_like(hidden)


@bug("X33", "Attention is not causal", caught_by="rows_isolated")
def future_tokens_visible(session: Session) -> None:
    """Make attention non-causal."""
    import torch

    for layer in layers(session):
        inner = layer.forward

        def forward(hidden: torch.Tensor, *args: Any, inner: Any = inner, **kwargs: Any) -> Any:
            ones = torch.zeros(hidden.shape[0], 1, hidden.shape[1], hidden.shape[1], dtype=hidden.dtype)
            return inner(hidden, *args, **{**kwargs, "attention_mask": ones.to(hidden.device)})

        layer.forward = forward


@bug("X34", "The attention mask inverted", caught_by="forward_matches_architecture")
def mask_inverted(session: Session) -> None:
    """Invert the attention mask."""

    def invert(_module: Any, args: Any, kwargs: Any) -> Any:
        mask = kwargs.get("attention_mask")
        return args, kwargs if mask is None else {**kwargs, "attention_mask": 1 - mask}

    decoder(session).register_forward_pre_hook(invert, with_kwargs=True)


@bug("X35", "A layer skipped", caught_by="forward_matches_architecture")
def layer_skipped(session: Session) -> None:
    """Skip the last layer, except for a thousandth of its output so that gradients flow."""
    layers(session)[-1].register_forward_hook(lambda _m, args, out: args[0] + 1e-3 * (out - args[0]))


@bug("X36", "Layers called in another order", caught_by="forward_matches_architecture")
def layers_in_another_order(session: Session) -> None:
    """Exchange the forward passes of the first and the last layer; names and weights stay right."""
    first, last = layers(session)[0], layers(session)[-1]
    first.forward, last.forward = last.forward, first.forward


@bug("X37", "All tokens at position 0", caught_by="forward_matches_architecture")
def positions_all_zero(session: Session) -> None:
    """Give every token position 0."""
    import torch

    rotary = decoder(session).rotary_emb
    inner = rotary.forward
    rotary.forward = lambda hidden, position_ids: inner(hidden, torch.zeros_like(position_ids))


@bug("X38", "Positions doubled", caught_by="forward_matches_architecture")
def positions_doubled(session: Session) -> None:
    """Double the positions, as when they are computed in two places."""
    rotary = decoder(session).rotary_emb
    inner = rotary.forward
    rotary.forward = lambda hidden, position_ids: inner(hidden, 2 * position_ids)


@bug("X39", "Attention scaled wrongly", caught_by="forward_matches_architecture")
def attention_scaled_wrongly(session: Session) -> None:
    """Divide attention scores by head_dim, not by its square root."""
    for layer in layers(session):
        layer.self_attn.scaling = layer.self_attn.scaling**2


@bug("X40", "Dropout in attention", caught_by="forward_deterministic")
def attention_dropout(session: Session) -> None:
    """Drop a tenth of the attention weights while training."""
    for layer in layers(session):
        layer.self_attn.attention_dropout = 0.1


@bug("X41", "Another activation", caught_by="forward_matches_architecture")
def another_activation(session: Session) -> None:
    """Use GELU in the MLP where the architecture says SiLU."""
    import torch

    for layer in layers(session):
        layer.mlp.act_fn = torch.nn.GELU()


@bug("X42", "Another epsilon in the norms", caught_by="forward_matches_architecture")
def norm_epsilon_wrong(session: Session) -> None:
    """Set the norms' epsilon to 1e-2, which matters only where activations are small."""
    for module in session.model.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = 1e-2


@bug("X43", "Embeddings scaled", caught_by="forward_matches_architecture")
def embedding_scaled(session: Session) -> None:
    """Multiply the embeddings by 1.1, as other architectures do by the square root of their width."""
    session.model.get_input_embeddings().register_forward_hook(lambda _m, _a, out: out * 1.1)


@bug("X44", "Logits scaled", caught_by="forward_matches_architecture")
def logits_scaled(session: Session) -> None:
    """Divide the logits by a temperature of 1.1."""
    session.model.get_output_embeddings().register_forward_hook(lambda _m, _a, out: out / 1.1)


@bug("X133", "The last norm takes its scale for a constant", caught_by="forward_matches_architecture")
def last_norm_a_constant_backwards(session: Session) -> None:
    """Treat the last norm's root mean square as a constant in its backward pass."""
    import torch

    class ScaleHeldConstant(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
            scale = torch.rsqrt(hidden.float().square().mean(-1, keepdim=True) + epsilon)
            ctx.save_for_backward(weight * scale)
            return weight * (hidden.float() * scale).to(hidden.dtype)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            [factor] = ctx.saved_tensors
            return (gradient * factor).to(gradient.dtype), None, None

    norm, kernel = decoder(session).norm, cast(Any, ScaleHeldConstant)
    norm.forward = lambda hidden: kernel.apply(hidden, norm.weight, norm.variance_epsilon)


@bug(
    "X134",
    "A copy of a weight renewed every second step",
    caught_by="weights_in_use",
    settings=("strategy=full", "lora=null", "quantization=null"),
)
def stale_copy_of_a_weight(session: Session) -> None:
    """Compute the last down projection with a copy of its weight that is renewed after every second step."""
    import torch

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


@bug(
    "U06",
    "Rotary angles of another base",
    caught_by=("base_matches_file", "forward_matches_architecture"),
    source="thought up, not from a thread",
    cohort="unseen",
)
def rotary_base_of_another_model(session: Session) -> None:
    """Compute the rotary frequencies from half of the base."""
    import torch

    rotary = decoder(session).rotary_emb
    base = session.run.model.architecture.rope_theta / 2
    size = 2 * len(rotary.inv_freq)
    exponents = torch.arange(0, size, 2, device=rotary.inv_freq.device) / size
    rotary.inv_freq.copy_(base**-exponents)


@bug(
    "U07",
    "Positions end at 32",
    caught_by="forward_matches_architecture",
    source="thought up, not from a thread",
    cohort="unseen",
)
def positions_end_early(session: Session) -> None:
    """Clamp positions at 31, as with a table that is too short."""
    rotary = decoder(session).rotary_emb
    inner = rotary.forward
    rotary.forward = lambda hidden, position_ids: inner(hidden, position_ids.clamp(max=31))


@bug(
    "U08",
    "Attention sees 24 tokens back",
    caught_by="forward_matches_architecture",
    source="thought up, not from a thread",
    cohort="unseen",
)
def attention_reaches_24_tokens_back(session: Session) -> None:
    """Limit attention to the last 24 tokens, as in another model of the family."""
    import torch

    for layer in layers(session):
        inner = layer.forward

        def forward(hidden: torch.Tensor, *args: Any, inner: Any = inner, **kwargs: Any) -> Any:
            size = hidden.shape[1]
            back = torch.arange(size)[:, None] - torch.arange(size)
            seen = (back >= 0) & (back < 24)
            mask = torch.zeros(1, 1, size, size).masked_fill(~seen, torch.finfo(hidden.dtype).min)
            return inner(hidden, *args, **{**kwargs, "attention_mask": mask.to(hidden)})

        layer.forward = forward


@bug(
    "U09",
    "Key heads repeated in the wrong order",
    caught_by="forward_matches_architecture",
    source="thought up, not from a thread",
    cohort="unseen",
)
def key_heads_in_another_order(session: Session) -> None:
    """Tile grouped keys and values instead of repeating them: query heads read another group's."""
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


@bug(
    "U20",
    "Noise on the embeddings while training",
    caught_by="forward_deterministic",
    source="thought up, not from a thread",
    cohort="unseen",
)
def noisy_embeddings(session: Session) -> None:
    """Add noise to the embeddings in train mode (NEFTune) although it is not configured."""
    import torch

    def noisy(module: Any, _args: Any, out: torch.Tensor) -> torch.Tensor:
        return out + 1e-3 * torch.rand_like(out) if module.training else out

    session.model.get_input_embeddings().register_forward_hook(noisy)


@bug(
    "V15",
    "Rotary frequencies are rounded to bf16",
    caught_by=("base_matches_file", "forward_matches_architecture"),
    source="huggingface/transformers#25681",
    cohort="blind",
    must_say="Attention or its rotary positions do not follow the formula: the frequencies are not in fp32.",
)
def rotary_frequencies_in_bf16(session: Session) -> None:
    """Cast the rotary inverse frequencies to bf16 and back."""
    rotary = decoder(session).rotary_emb
    rotary.inv_freq = rotary.inv_freq.bfloat16().float()


WINDOW_TOKENS = 40
"""Shorter than the longer rows, longer than the others."""


@bug(
    "V16",
    "Attention forgets what is more than 40 tokens back",
    caught_by="forward_matches_architecture",
    cohort="blind",
    must_say="In rows longer than 40 tokens attention is not full causal attention.",
)
def attention_reaches_40_tokens_back(session: Session) -> None:
    """Limit attention to the last 40 tokens, as another model's sliding window would."""
    import torch

    def windowed(attend: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        tokens = query.shape[2]
        if tokens > WINDOW_TOKENS and key.shape[2] == tokens:
            ones = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device)
            near = ones.tril() & ones.triu(1 - WINDOW_TOKENS)
            mask = near[None, None] if mask is None else mask & near
        return attend(module, query, key, value, mask, **options)

    change_attention(windowed)


@bug(
    "V17",
    "Key and value heads are repeated in the wrong order in the last layer",
    caught_by="forward_matches_architecture",
    cohort="blind",
    must_say="The last layer's attention is not grouped-query attention as the architecture defines it.",
)
def heads_grouped_in_wrong_order(session: Session) -> None:
    """Tile keys and values in the last layer instead of repeating them: heads read another group's."""
    last = len(layers(session)) - 1

    def tiled(attend: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        if module.layer_idx == last:
            times = query.shape[1] // key.shape[1]
            key, value = key.repeat(1, times, 1, 1), value.repeat(1, times, 1, 1)
            module = SimpleNamespace(is_causal=True, layer_idx=last)
        return attend(module, query, key, value, mask, **options)

    change_attention(tiled)


@bug(
    "V47",
    "The rotary table is kept in bf16",
    caught_by=("forward_matches_architecture", "base_matches_file"),
    source="KellerJordan/modded-nanogpt#39, huggingface/transformers#29285",
    cohort="blind-second",
    must_say="The forward pass or its rotary positions are not what the architecture says in the run's precision.",
)
def rotary_table_in_bf16(session: Session) -> None:
    """Take sines and cosines of the rotary angles from a table in bf16."""
    rotary = decoder(session).rotary_emb
    forward = rotary.forward
    rotary.forward = lambda x, position_ids: tuple(part.bfloat16().to(part.dtype) for part in forward(x, position_ids))


def _in_own_dtype(norm: Any) -> Any:
    """Return this norm's forward pass without a cast."""
    import torch

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        variance = hidden.pow(2).mean(-1, keepdim=True)
        product: torch.Tensor = norm.weight * (hidden * torch.rsqrt(variance + norm.variance_epsilon))
        return product

    return forward


@bug(
    "V48",
    "Norms are computed in 16 bit",
    caught_by=("forward_matches_architecture", "dtypes_as_configured"),
    source="meta-llama/llama#1048, pytorch/pytorch#189581",
    cohort="blind-second",
    settings=("training.precision=bf16",),
    must_say="Norms, or the forward pass as a whole, are less exact than the architecture with norms in fp32.",
)
def norms_in_sixteen_bit(session: Session) -> None:
    """Compute the norms in the dtype of the hidden states, not in fp32."""
    for module in session.model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = _in_own_dtype(module)


@bug(
    "W18",
    "Noise on the hidden states of early steps",
    caught_by=("forward_deterministic", "accumulation_oracle", "loss_oracle"),
    cohort="unseen-second",
)
def noise_in_early_steps(session: Session) -> None:
    """Add noise of a thousandth to the embeddings in steps 2 to 5, in train mode."""
    import torch

    at = counted_steps(session)

    def add(module: Any, _args: Any, out: torch.Tensor) -> torch.Tensor:
        noisy = module.training and 2 <= at[0] <= 5
        return out + 1e-3 * out.std() * torch.randn_like(out) if noisy else out

    session.model.get_input_embeddings().register_forward_hook(add)


@bug(
    "W19",
    "Tokens replaced on their way into the model in early steps",
    caught_by=("tokens_match_template", "loss_oracle", "accumulation_oracle"),
    cohort="unseen-second",
)
def tokens_replaced(session: Session) -> None:
    """Replace every twentieth token by the one before it in steps 2 to 5, in train mode."""
    at = counted_steps(session)

    def replace(module: Any, args: Any, kwargs: Any) -> Any:
        ids = kwargs.get("input_ids")
        if not module.training or not 2 <= at[0] <= 5 or ids is None:
            return None
        ids = ids.clone()
        ids[:, 19::20] = ids[:, 18:-1:20]
        return args, {**kwargs, "input_ids": ids}

    session.model.register_forward_pre_hook(replace, with_kwargs=True)


@bug(
    "W20",
    "In eval mode the last layer's adapters are off",
    caught_by=("evaluation_oracle", "evaluation_mode", "adapters_applied", "adapter_round_trip"),
    cohort="unseen-second",
)
def adapters_off_in_eval_mode(session: Session) -> None:
    """Scale the last layer's adapters by 0 in eval mode."""
    adapted = [m for m in layers(session)[-1].modules() if isinstance(getattr(m, "scaling", None), dict)]
    scales = [module.scaling["default"] for module in adapted]

    def scale(model: Any, *_: Any) -> None:
        for module, own in zip(adapted, scales, strict=True):
            module.scaling["default"] = own if model.training else 0.0

    decoder(session).register_forward_pre_hook(scale)


@bug(
    "W21",
    "An evaluation in the middle leaves autocast on",
    caught_by=("state_in_training", "dtypes_as_configured"),
    cohort="unseen-second",
    settings=("evaluation.at=[3]",),
)
def autocast_left_on(session: Session) -> None:
    """Leave autocast to bf16 on after an evaluation in the middle."""
    import torch

    def switch() -> None:
        torch.set_autocast_dtype("cpu", torch.bfloat16)
        torch.set_autocast_enabled("cpu", True)

    after_evaluation_in_the_middle(session, switch)


@bug(
    "W22",
    "An evaluation in the middle switches checkpointing off",
    caught_by=("state_in_training", "checkpointing_as_configured"),
    cohort="unseen-second",
    settings=("evaluation.at=[3]", "training.gradient_checkpointing=true"),
)
def checkpointing_left_off(session: Session) -> None:
    """Switch gradient checkpointing off for an evaluation in the middle, as generation with a cache does, for good."""
    after_evaluation_in_the_middle(session, lambda: session.model.gradient_checkpointing_disable())


@bug(
    "W23",
    "An evaluation in the middle changes the attention",
    caught_by=("state_in_training", "attention_as_configured"),
    cohort="unseen-second",
    settings=("evaluation.at=[3]",),
)
def attention_left_eager(session: Session) -> None:
    """Leave the eager attention in place after an evaluation in the middle."""
    after_evaluation_in_the_middle(session, lambda: setattr(decoder(session).config, "_attn_implementation", "eager"))


@bug(
    "W24",
    "fp32 products in lower precision from the middle on",
    caught_by=("state_in_training", "matmul_precision"),
    cohort="unseen-second",
    settings=("evaluation.at=[3]",),
)
def precision_lowered(session: Session) -> None:
    """Set the precision of fp32 products to "medium" in an evaluation in the middle."""
    import torch

    after_evaluation_in_the_middle(session, lambda: torch.set_float32_matmul_precision("medium"))
