"""Adapters that get no gradient, are not where they should be, or do something else than (alpha/r) B A x."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint

from benchmarks.detection.bugs.parts import (
    adapted_modules,
    after_first_evaluation,
    after_step,
    decoder,
    layers,
    lora_parameters,
)

if TYPE_CHECKING:
    from suite.training.session import Session


def reentrant_checkpointing(session: Session) -> None:
    """Reentrant checkpointing over the first half of the layers: frozen inputs cut the gradient there."""
    for layer in layers(session)[: len(layers(session)) // 2]:
        inner = layer.forward

        def forward(hidden: torch.Tensor, *args: Any, inner: Any = inner, **kwargs: Any) -> Any:
            return checkpoint(lambda h: inner(h, *args, **kwargs), hidden, use_reentrant=True)

        layer.forward = forward


def reloaded_frozen(session: Session) -> None:
    """The whole adapter is frozen, as after a load for inference; the optimizer holds one norm instead."""
    for _, parameter in lora_parameters(session):
        parameter.requires_grad_(False)
    norm = decoder(session).norm.weight.requires_grad_(True)
    session.optimizer.param_groups[0]["params"] = [norm]


def upper_half_frozen(session: Session) -> None:
    """requires_grad is lost on the adapters of the upper layers."""
    upper = {f".layers.{number}." for number in range(len(layers(session)) // 2, len(layers(session)))}
    for name, parameter in lora_parameters(session):
        if any(part in name for part in upper):
            parameter.requires_grad_(False)


def every_second_layer_without(session: Session) -> None:
    """The adapters of every second layer are missing, as with a pattern that matches only some."""
    for layer in layers(session)[::2]:
        layer.self_attn.q_proj = layer.self_attn.q_proj.base_layer


def greedy_layer_index(session: Session) -> None:
    """Only layers whose number begins with 1 have adapters: 1, 10 to 19."""
    for number, layer in enumerate(layers(session)):
        if not str(number).startswith("1"):
            layer.self_attn.q_proj = layer.self_attn.q_proj.base_layer
            layer.self_attn.v_proj = layer.self_attn.v_proj.base_layer


def norms_unfrozen_by_evaluation(session: Session) -> None:
    """The first evaluation leaves the norms trainable, and the optimizer is given them too."""

    def unfreeze() -> None:
        norms = [p for name, p in session.model.named_parameters() if "norm" in name]
        for norm in norms:
            norm.requires_grad_(True)
        session.optimizer.param_groups[0]["params"] += norms

    after_first_evaluation(session, unfreeze)


def scaling_is_alpha(session: Session) -> None:
    """LoRA scales by alpha instead of alpha / r."""
    for module in adapted_modules(session):
        module.scaling["default"] = session.run.lora.alpha  # type: ignore[union-attr]


def scaling_is_rank_stabilised(session: Session) -> None:
    """LoRA scales by alpha / sqrt(r), as another variant of it does."""
    for module in adapted_modules(session):
        module.scaling["default"] = session.run.lora.alpha / session.run.lora.r**0.5  # type: ignore[union-attr]


def scaling_decays_while_training(session: Session) -> None:
    """Each step multiplies every adapter's scaling by 0.9: a schedule that nobody asked for."""

    def decay() -> None:
        for module in adapted_modules(session):
            module.scaling["default"] *= 0.9

    after_step(session, decay)


def random_b(session: Session) -> None:
    """B does not start at zero."""
    with torch.no_grad():
        for _, parameter in lora_parameters(session, "lora_B"):
            parameter.normal_(std=0.02)


def a_starts_at_zero_too(session: Session) -> None:
    """Both factors start at zero: neither ever gets a gradient."""
    with torch.no_grad():
        for _, parameter in lora_parameters(session, "lora_A"):
            parameter.zero_()


def weights_in_bf16(session: Session) -> None:
    """The adapters are bf16: updates below half a unit in the last place are lost."""
    for _, parameter in lora_parameters(session):
        parameter.data = parameter.data.bfloat16()


def updates_rounded_to_bf16(session: Session) -> None:
    """The dtype says fp32, but every step's result is rounded to bf16."""

    def round_all() -> None:
        for _, parameter in lora_parameters(session):
            parameter.data = parameter.data.bfloat16().float()

    after_step(session, round_all)


def merged_while_training(session: Session) -> None:
    """After the first evaluation one layer's adapter is merged into the base and stays merged."""
    after_first_evaluation(session, lambda: layers(session)[0].self_attn.q_proj.merge())


def disabled_by_evaluation(session: Session) -> None:
    """After the first evaluation the adapters are switched off and stay off."""
    after_first_evaluation(session, lambda: session.model.base_model.disable_adapter_layers())


def one_gradient_doubled(session: Session) -> None:
    """A hook doubles the gradient of one adapter tensor, in every backward pass."""
    parameter: Any = lora_parameters(session, "lora_B")[0][1]
    parameter.register_hook(lambda gradient: 2 * gradient)


def gradient_detached_in_one_layer(session: Session) -> None:
    """The last layer's attention output is detached: only the residual carries a gradient."""
    layers(session)[-1].self_attn.register_forward_hook(lambda _m, _a, out: (out[0].detach(), *out[1:]))


def one_pair_shared(session: Session) -> None:
    """Two layers share one pair of factors."""
    first, last = layers(session)[0].self_attn.q_proj, layers(session)[-1].self_attn.q_proj
    last.lora_A, last.lora_B = first.lora_A, first.lora_B


def dropout_though_zero(session: Session) -> None:
    """The adapters drop a tenth of their input although the run says 0."""
    for module in adapted_modules(session):
        module.lora_dropout["default"] = torch.nn.Dropout(0.1)


def smaller_rank_in_one_layer(session: Session) -> None:
    """One adapter has half the configured rank; names and number of tensors are those of the whole one."""
    first = adapted_modules(session)[0]
    down, up = first.lora_A["default"].weight, first.lora_B["default"].weight
    down.data, up.data = down.data[: len(down) // 2].clone(), up.data[:, : len(down) // 2].clone()


def start_unseeded(session: Session) -> None:
    """A is drawn at its size, but from no seed: no run can be repeated."""
    generator = torch.Generator()
    generator.seed()
    with torch.no_grad():
        for _, parameter in lora_parameters(session, "lora_A"):
            bound = parameter.shape[1] ** -0.5
            parameter.copy_((2 * torch.rand(parameter.shape, generator=generator) - 1) * bound)


def start_from_another_seed(session: Session) -> None:
    """The generator is seeded with a number of its own before the adapters are made: the run's seed decides nothing."""
    torch.manual_seed(1234)
    with torch.no_grad():
        for _, parameter in lora_parameters(session, "lora_A"):
            torch.nn.init.kaiming_uniform_(parameter, a=5**0.5)


def twin_rows(session: Session) -> None:
    """A is drawn in two parts from one seed, as by two ranks of a tensor-parallel job: half of the rank, for good."""
    with torch.no_grad():
        for _, parameter in lora_parameters(session, "lora_A"):
            half = len(parameter) // 2
            parameter[half:] = parameter[: len(parameter) - half]


class _OneMask(torch.nn.Dropout):
    """Its mask is drawn from the seed that it is given, if any, and with one row for all tokens, if so asked."""

    def __init__(self, share: float, *, seed: int | None, for_all_tokens: bool) -> None:
        super().__init__(share)
        self._seed, self._for_all_tokens = seed, for_all_tokens

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The inputs that stay, scaled."""
        if not self.training:
            return x
        generator = torch.Generator(x.device).manual_seed(self._seed) if self._seed is not None else None
        mask = torch.empty_like(x[:1, :1] if self._for_all_tokens else x)
        return x * mask.bernoulli_(1 - self.p, generator=generator) / (1 - self.p)


def one_mask_for_all_tokens(session: Session) -> None:
    """A fused dropout indexes its mask by the column alone: all tokens of all rows lose the same features."""
    for module in adapted_modules(session):
        share = module.lora_dropout["default"].p
        module.lora_dropout["default"] = _OneMask(share, seed=None, for_all_tokens=True).train()


def one_mask_for_all_adapters(session: Session) -> None:
    """A fused dropout is given the same seed by every adapter: all of them lose the same elements of their input."""
    for module in adapted_modules(session):
        share = module.lora_dropout["default"].p
        module.lora_dropout["default"] = _OneMask(share, seed=7, for_all_tokens=False).train()
