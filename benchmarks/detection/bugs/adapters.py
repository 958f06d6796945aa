"""Adapters that receive no gradient, are on other modules, or compute something else than (alpha/r) B A x."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.detection.bugs.bug import bug
from benchmarks.detection.bugs.parts import (
    adapted_modules,
    after_first_evaluation,
    after_step,
    change_window,
    decoder,
    layers,
    lora_parameters,
)

if TYPE_CHECKING:
    import torch

    from tunecheck.training.session import Session


@bug(
    "B01",
    "Reentrant checkpointing cuts the gradient of half the adapters",
    caught_by="lora_gradient_schedule",
    source="locuslab/open-unlearning#178, huggingface/transformers#26221",
)
def reentrant_checkpointing(session: Session) -> None:
    """Checkpoint the first half of the layers with use_reentrant=True: their frozen inputs cut the gradient there."""
    from torch.utils.checkpoint import checkpoint

    for layer in layers(session)[: len(layers(session)) // 2]:
        inner = layer.forward

        def forward(hidden: torch.Tensor, *args: Any, inner: Any = inner, **kwargs: Any) -> Any:
            return checkpoint(lambda h: inner(h, *args, **kwargs), hidden, use_reentrant=True)

        layer.forward = forward


@bug(
    "B02",
    "An adapter reloaded frozen, the optimizer without it",
    caught_by="trainable_set",
    source="huggingface/peft#282, huggingface/trl#6700, mosaicml/llm-foundry#1701",
)
def reloaded_frozen(session: Session) -> None:
    """Freeze the whole adapter, as after a load for inference, and give the optimizer one norm instead."""
    for _, parameter in lora_parameters(session):
        parameter.requires_grad_(False)
    norm = decoder(session).norm.weight.requires_grad_(True)
    session.optimizer.param_groups[0]["params"] = [norm]


@bug(
    "B05",
    "requires_grad lost on part of the adapter",
    caught_by="trainable_set",
    source="huggingface/peft#1346, #1410, #2765, #2807",
)
def upper_half_frozen(session: Session) -> None:
    """Drop requires_grad on the adapters of the upper half of the layers."""
    upper = {f".layers.{number}." for number in range(len(layers(session)) // 2, len(layers(session)))}
    for name, parameter in lora_parameters(session):
        if any(part in name for part in upper):
            parameter.requires_grad_(False)


@bug("B06", "Adapters in some layers only", caught_by="trainable_set", source="huggingface/peft#3658, #1024")
def every_second_layer_without(session: Session) -> None:
    """Remove the adapters of every second layer, as with a pattern that matches only some."""
    for layer in layers(session)[::2]:
        layer.self_attn.q_proj = layer.self_attn.q_proj.base_layer


@bug(
    "B07", "A greedy layer pattern picks other layers", caught_by="trainable_set", source="huggingface/peft#3028, #3318"
)
def greedy_layer_index(session: Session) -> None:
    """Keep adapters only in layers whose index begins with 1: 1, 10 to 19."""
    for number, layer in enumerate(layers(session)):
        if not str(number).startswith("1"):
            layer.self_attn.q_proj = layer.self_attn.q_proj.base_layer
            layer.self_attn.v_proj = layer.self_attn.v_proj.base_layer


@bug("B09", "An evaluation unfreezes frozen tensors", caught_by="trainable_set", source="huggingface/peft#3447, #2936")
def norms_unfrozen_by_evaluation(session: Session) -> None:
    """Leave the norms trainable after the first evaluation, and add them to the optimizer."""

    def unfreeze() -> None:
        norms = [p for name, p in session.model.named_parameters() if "norm" in name]
        for norm in norms:
            norm.requires_grad_(True)
        session.optimizer.param_groups[0]["params"] += norms

    after_first_evaluation(session, unfreeze)


@bug(
    "B12",
    "LoRA scales by alpha, not alpha/r",
    caught_by="adapter_algebra",
    source="Blaizzy/mlx-vlm#845, #841, rasbt/LLMs-from-scratch#821",
)
def scaling_is_alpha(session: Session) -> None:
    """Scale LoRA by alpha instead of alpha / r."""
    for module in adapted_modules(session):
        module.scaling["default"] = session.run.lora.alpha  # type: ignore[union-attr]


@bug(
    "B14",
    "The adapter's initialisation changes the function",
    caught_by="adapters_start_neutral",
    source="huggingface/peft#1626, #1929, #1532",
)
def random_b(session: Session) -> None:
    """Initialize B with random values instead of zero."""
    import torch

    with torch.no_grad():
        for _, parameter in lora_parameters(session, "lora_B"):
            parameter.normal_(std=0.02)


@bug(
    "B16",
    "Adapters in pure bf16",
    caught_by="dtypes_as_configured",
    source="pytorch/ao#1124, meta-pytorch/torchtune#2254, Nerogar/OneTrainer#996",
)
def weights_in_bf16(session: Session) -> None:
    """Keep the adapters in bf16: updates below half a unit in the last place are lost."""
    for _, parameter in lora_parameters(session):
        parameter.data = parameter.data.bfloat16()


@bug("X01", "LoRA scales by alpha / sqrt(r)", caught_by="adapter_algebra")
def scaling_is_rank_stabilized(session: Session) -> None:
    """Scale LoRA by alpha / sqrt(r), as rsLoRA does."""
    for module in adapted_modules(session):
        module.scaling["default"] = session.run.lora.alpha / session.run.lora.r**0.5  # type: ignore[union-attr]


@bug("X02", "The adapters' scaling changes while training", caught_by="adapter_round_trip")
def scaling_decays_while_training(session: Session) -> None:
    """Multiply every adapter's scaling by 0.9 after each step."""

    def decay() -> None:
        for module in adapted_modules(session):
            module.scaling["default"] *= 0.9

    after_step(session, decay)


@bug("X03", "Both factors start at zero", caught_by="lora_gradient_schedule")
def a_starts_at_zero_too(session: Session) -> None:
    """Initialize both factors with zero: neither ever receives a gradient."""
    import torch

    with torch.no_grad():
        for _, parameter in lora_parameters(session, "lora_A"):
            parameter.zero_()


@bug("X04", "Updates rounded to bf16, the dtype fp32", caught_by="updates_match_adamw")
def updates_rounded_to_bf16(session: Session) -> None:
    """Round every step's result to bf16 while the dtype stays fp32."""

    def round_all() -> None:
        for _, parameter in lora_parameters(session):
            parameter.data = parameter.data.bfloat16().float()

    after_step(session, round_all)


@bug("X05", "Adapters merged in the middle of the run", caught_by="base_untouched")
def merged_while_training(session: Session) -> None:
    """Merge one layer's adapter into the base after the first evaluation and leave it merged."""
    after_first_evaluation(session, lambda: layers(session)[0].self_attn.q_proj.merge())


@bug("X06", "Adapters switched off by an evaluation", caught_by=("trainable_set", "state_in_training"))
def disabled_by_evaluation(session: Session) -> None:
    """Disable the adapters at the first evaluation and leave them disabled."""
    after_first_evaluation(session, lambda: session.model.base_model.disable_adapter_layers())


@bug("X09", "Two layers share their factors", caught_by="trainable_set")
def one_pair_shared(session: Session) -> None:
    """Share one pair of factors between two layers."""
    first, last = layers(session)[0].self_attn.q_proj, layers(session)[-1].self_attn.q_proj
    last.lora_A, last.lora_B = first.lora_A, first.lora_B


@bug("X10", "Dropout in the adapters though 0", caught_by="adapter_algebra")
def dropout_though_zero(session: Session) -> None:
    """Drop a tenth of the adapters' input although the configured dropout is 0."""
    import torch

    for module in adapted_modules(session):
        module.lora_dropout["default"] = torch.nn.Dropout(0.1)


@bug("X66", "The same dropout masks at every step", caught_by="dropout_varies", settings=("lora.dropout=0.1",))
def random_state_reset(session: Session) -> None:
    """Reset the seed at each step: dropout draws the same masks every time."""
    import torch

    def seeded(step: int, window: Any) -> Any:
        torch.manual_seed(session.run.training.seed)
        return window(step)

    change_window(session, seeded)


@bug(
    "X83",
    "Adapters start from no seed",
    caught_by="repeat_equals",
    settings=("probes.repeat_steps=3",),
    tier="convergence",
)
def start_unseeded(session: Session) -> None:
    """Draw A at its configured size from an unseeded generator: no run can be repeated."""
    import torch

    generator = torch.Generator()
    generator.seed()
    with torch.no_grad():
        for _, parameter in lora_parameters(session, "lora_A"):
            bound = parameter.shape[1] ** -0.5
            parameter.copy_((2 * torch.rand(parameter.shape, generator=generator) - 1) * bound)


@bug("X93", "One adapter of half the rank", caught_by="parameters_counted")
def smaller_rank_in_one_layer(session: Session) -> None:
    """Halve the rank of one adapter; names and number of tensors stay right."""
    first = adapted_modules(session)[0]
    down, up = first.lora_A["default"].weight, first.lora_B["default"].weight
    down.data, up.data = down.data[: len(down) // 2].clone(), up.data[:, : len(down) // 2].clone()


@bug("X100", "Adapters start from another seed", caught_by="adapters_start_random")
def start_from_another_seed(session: Session) -> None:
    """Seed the generator with a constant before the adapters are drawn: the run's seed decides nothing."""
    import torch

    torch.manual_seed(1234)
    with torch.no_grad():
        for _, parameter in lora_parameters(session, "lora_A"):
            torch.nn.init.kaiming_uniform_(parameter, a=5**0.5)


@bug("X130", "The rows of A in equal pairs", caught_by="adapters_start_random")
def twin_rows(session: Session) -> None:
    """Draw the two halves of A from one seed, as two tensor-parallel ranks would: half of the rank is lost."""
    import torch

    with torch.no_grad():
        for _, parameter in lora_parameters(session, "lora_A"):
            half = len(parameter) // 2
            parameter[half:] = parameter[: len(parameter) - half]


def _replace_dropout(session: Session, *, seed: int | None, for_all_tokens: bool) -> None:
    """Replace the adapters' dropout masks: drawn from this seed if given, one row for all tokens if requested."""
    import torch

    def masked(dropout: Any, x: torch.Tensor) -> Any:
        if not dropout.training:
            return x
        generator = torch.Generator(x.device).manual_seed(seed) if seed is not None else None
        mask = torch.empty_like(x[:1, :1] if for_all_tokens else x)
        return x * mask.bernoulli_(1 - dropout.p, generator=generator) / (1 - dropout.p)

    for module in adapted_modules(session):
        if not hasattr(module.lora_dropout["default"], "p"):  # peft's Identity, in runs without dropout
            continue
        dropout: Any = torch.nn.Dropout(module.lora_dropout["default"].p).train()
        dropout.forward = partial(masked, dropout)
        module.lora_dropout["default"] = dropout


@bug("X131", "All tokens lose the same features", caught_by="dropout_varies", settings=("lora.dropout=0.1",))
def one_mask_for_all_tokens(session: Session) -> None:
    """Index the dropout mask by the column alone: all tokens of all rows lose the same features."""
    _replace_dropout(session, seed=None, for_all_tokens=True)


@bug("X132", "All adapters lose the same elements", caught_by="dropout_varies", settings=("lora.dropout=0.1",))
def one_mask_for_all_adapters(session: Session) -> None:
    """Give the fused dropout of every adapter the same seed: all of them lose the same elements."""
    _replace_dropout(session, seed=7, for_all_tokens=False)


@bug(
    "U10",
    "Adapters on k_proj instead of v_proj",
    caught_by="trainable_set",
    source="thought up, not from a thread",
    cohort="unseen",
)
def adapters_on_other_modules(session: Session) -> None:
    """Put the adapters on k_proj where the run configures v_proj."""
    for layer in layers(session):
        attention = layer.self_attn
        wrapped = attention.v_proj
        attention.v_proj, wrapped.base_layer = wrapped.base_layer, attention.k_proj
        attention.k_proj = wrapped


@bug(
    "U11",
    "Every adapter starts from the same A",
    caught_by="adapters_start_random",
    source="thought up, not from a thread",
    cohort="unseen",
)
def same_a_everywhere(session: Session) -> None:
    """Reset the seed for each adapter: all A of one shape hold the same values."""
    import torch

    first: dict[torch.Size, torch.Tensor] = {}
    with torch.no_grad():
        for _, parameter in lora_parameters(session, "lora_A"):
            parameter.copy_(first.setdefault(parameter.shape, parameter.detach().clone()))


@bug(
    "U12",
    "A starts a hundred times too large",
    caught_by="adapters_start_random",
    source="thought up, not from a thread",
    cohort="unseen",
)
def a_starts_too_large(session: Session) -> None:
    """Draw A a hundred times too large: with B at 0 the function is unchanged, and then each step is too long."""
    import torch

    with torch.no_grad():
        for _, parameter in lora_parameters(session, "lora_A"):
            parameter.mul_(100)


def _on_detached(forward: Any) -> Any:
    """Return the function called with a detached input."""
    return lambda x: forward(x.detach())


@bug(
    "V01",
    "Adapters pass no gradient to the layers below them",
    caught_by=("gradient_matches_loss", "adapter_algebra"),
    cohort="blind",
    must_say="The gradients of the adapters do not agree with the loss: below the last adapted layer they lack a part.",
)
def no_gradient_to_input(session: Session) -> None:
    """Detach the input of every lora_A: the layers below learn nothing through the adapters above them."""
    for module in adapted_modules(session):
        for linear in module.lora_A.values():
            linear.forward = _on_detached(linear.forward)


@bug(
    "V02",
    "One layer's adapter stays off after an evaluation",
    caught_by=("lora_gradient_schedule", "trainable_moved", "adapters_applied"),
    cohort="blind",
    must_say=(
        "From the first evaluation on, the last layer's adapters are not applied, get no gradient and do not move."
    ),
)
def adapter_off_after_evaluation(session: Session) -> None:
    """Disable the last layer's adapters at the first evaluation, as for a reference model, and leave them disabled."""

    def switch_off() -> None:
        for module in layers(session)[-1].modules():
            if isinstance(getattr(module, "scaling", None), dict):
                module._disable_adapters = True

    after_first_evaluation(session, switch_off)


@bug(
    "V37",
    "The adapters' start does not come from the seed",
    caught_by="repeat_equals",
    cohort="blind",
    tier="convergence",
    must_say="The same run with the same seed does not repeat: adapters at the start or losses differ.",
)
def adapters_not_seeded(session: Session) -> None:
    """Draw lora_A from an unseeded generator: the same seed gives other runs."""
    import torch

    generator = torch.Generator(device=session.device)
    generator.seed()
    for _, parameter in lora_parameters(session, "lora_A"):
        torch.nn.init.kaiming_uniform_(parameter.data, a=math.sqrt(5), generator=generator)


@bug(
    "V63",
    "One kind of module has another alpha",
    caught_by=("adapter_algebra", "adapter_round_trip"),
    source="huggingface/peft#3582, #2195",
    cohort="blind-second",
    must_say="Some adapters add something else than (alpha / r) B A x, or have another scaling than the run asks for.",
)
def another_alpha_by_pattern(session: Session) -> None:
    """Give every v_proj twice the alpha, by a pattern meant for another model."""
    for name, module in session.model.named_modules():
        if name.endswith("v_proj") and isinstance(getattr(module, "scaling", None), dict):
            module.scaling["default"] *= 2


@bug(
    "V64",
    "The adapters' dropout is asked for and never applied",
    caught_by=("dropout_varies", "adapter_algebra"),
    source="meta-pytorch/torchtune#996",
    cohort="blind-second",
    settings=("lora.dropout=0.1",),
    must_say="The adapters' dropout is not active although the run asks for it.",
)
def dropout_never_applied(session: Session) -> None:
    """Configure the adapters' dropout without applying it."""
    import torch

    for module in adapted_modules(session):
        module.lora_dropout["default"] = torch.nn.Identity()


@bug(
    "V65",
    "The adapters' dropout falls on base and adapter together",
    caught_by=("adapter_algebra", "adapters_start_neutral"),
    source="axolotl-ai-cloud/axolotl#3528",
    cohort="blind-second",
    settings=("lora.dropout=0.1",),
    must_say="Dropout acts on the base too, or the adapters do not compute their formula with dropout on their input.",
)
def dropout_on_the_sum(session: Session) -> None:
    """Apply dropout to the layer's output, base and adapter together, not to the adapter's input."""
    import torch
    import torch.nn.functional as F

    rate = session.run.lora.dropout  # type: ignore[union-attr]
    for module in adapted_modules(session):
        module.lora_dropout["default"] = torch.nn.Identity()
        module.register_forward_hook(lambda layer, _args, out: F.dropout(out, rate, layer.training))


@bug(
    "V66",
    "DoRA's magnitudes were taken of other weights",
    caught_by=("adapters_start_neutral", "adapter_algebra"),
    source="ml-explore/mlx-examples#832",
    cohort="blind-second",
    settings=("lora.use_dora=true",),
    must_say="The adapters do not start neutral: DoRA's magnitudes are not the norms of the base's rows.",
)
def magnitudes_of_other_weights(session: Session) -> None:
    """Take DoRA's magnitudes from a freshly initialized layer, as before the weights were loaded."""
    import torch

    for module in adapted_modules(session):
        fresh = torch.empty(module.out_features, module.in_features)
        torch.nn.init.kaiming_uniform_(fresh, a=math.sqrt(5), generator=torch.Generator().manual_seed(0))
        for magnitude in module.lora_magnitude_vector.values():
            magnitude.weight.data.copy_(torch.linalg.norm(fresh, dim=1))


def _unscaled(norms: Any) -> Any:
    """Return the norms' function without the scaling."""
    return lambda weight, lora_weight, scaling, adapter_name=None: norms(weight, lora_weight, 1.0, adapter_name)


@bug(
    "V67",
    "DoRA's norms leave out the scaling",
    caught_by="adapter_algebra",
    source="adapter-hub/adapters#790, huggingface/peft#1474",
    cohort="blind-second",
    settings=("lora.use_dora=true",),
    must_say="The adapters do not compute DoRA's formula: the norm they divide by is not that of the adapted weight.",
)
def norms_without_scaling(session: Session) -> None:
    """Divide by the norm of W + B A in DoRA, without alpha / r: right at the start, wrong once B has moved."""
    for module in adapted_modules(session):
        for magnitude in module.lora_magnitude_vector.values():
            magnitude.get_weight_norm = _unscaled(magnitude.get_weight_norm)


@bug(
    "V78",
    "Dropout does not come from the seed",
    caught_by="repeat_equals",
    source="meta-pytorch/torchtune#2335",
    cohort="blind-second",
    settings=("lora.dropout=0.1", "probes.repeat_steps=3"),
    must_say="The same run with the same seed does not repeat.",
)
def dropout_not_seeded(session: Session) -> None:
    """Seed the generator from the clock after the adapters are drawn: dropout never repeats."""
    import torch

    torch.seed()


@bug(
    "W37",
    "The adapters' scale is halved for some steps",
    caught_by=("state_in_training", "adapter_algebra"),
    cohort="unseen-second",
)
def scale_halved_for_a_while(session: Session) -> None:
    """Halve the adapters' scaling in steps 3 to 5."""
    adapted = adapted_modules(session)
    scales = [module.scaling["default"] for module in adapted]

    def fetch(step: int, window: Any) -> Any:
        for module, own in zip(adapted, scales, strict=True):
            module.scaling["default"] = own / 2 if 3 <= step <= 5 else own
        return window(step)

    change_window(session, fetch)
