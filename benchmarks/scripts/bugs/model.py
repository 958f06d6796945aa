"""Mistakes in the model: frozen, scaled, patched, initialised again."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.scripts.bugs.mistake import mistake
from benchmarks.scripts.script import Script


@mistake("trainable_set")
def adapters_frozen_above(script: Script) -> None:
    """A helper freezes the second layer, adapters and all."""

    def freeze(model: Any) -> None:
        for name, parameter in model.named_parameters():
            if ".layers.1." in name:
                parameter.requires_grad_(False)

    script.adapted.append(freeze)


@mistake("trainable_set")
def norms_unfrozen(script: Script) -> None:
    """A helper for 4-bit training makes the norms trainable."""

    def unfreeze(model: Any) -> None:
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.requires_grad_(True)

    script.adapted.append(unfreeze)


@mistake("adapter_algebra")
def scaling_doubled(script: Script) -> None:
    """The adapters' scaling is set by hand, to twice what the configuration says."""

    def scale(model: Any) -> None:
        for module in model.modules():
            if hasattr(module, "scaling") and isinstance(module.scaling, dict):
                module.scaling["default"] *= 2

    script.adapted.append(scale)


@mistake("adapters_start_neutral")
def adapter_starts_changed(script: Script) -> None:
    """Both factors are initialised at random, so that the adapted model is not the base."""

    def fill(model: Any) -> None:
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                torch.nn.init.normal_(parameter, std=0.02)

    script.adapted.append(fill)


@mistake("adapters_start_random", "lora_gradient_schedule")
def first_factor_zero(script: Script) -> None:
    """Both factors start at zero, so that nothing can learn."""

    def clear(model: Any) -> None:
        for name, parameter in model.named_parameters():
            if ".lora_A." in name:
                torch.nn.init.zeros_(parameter)

    script.adapted.append(clear)


@mistake("base_matches_file")
def layer_initialised_again(script: Script) -> None:
    """After loading, a layer's weights are initialised again."""

    def initialise(model: Any) -> None:
        torch.nn.init.normal_(model.model.layers[1].mlp.up_proj.weight, std=0.02)

    script.loaded.append(initialise)


@mistake("base_matches_file")
def head_untied(script: Script) -> None:
    """The head is copied, so that it is no longer the embedding."""

    def untie(model: Any) -> None:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())

    script.loaded.append(untie)


@mistake("forward_matches_architecture")
def epsilon_changed(script: Script) -> None:
    """A patch of the norms has another epsilon."""

    def patch(model: Any) -> None:
        for module in model.modules():
            if hasattr(module, "variance_epsilon"):
                module.variance_epsilon = 1e-2

    script.loaded.append(patch)


@mistake("forward_matches_architecture")
def layer_skipped(script: Script) -> None:
    """A layer's MLP is multiplied by a half, for a technique that was given up."""

    def halve(model: Any) -> None:
        model.model.layers[0].mlp.register_forward_hook(lambda _module, _args, out: 0.5 * out)

    script.loaded.append(halve)


@mistake("forward_deterministic", "accumulation_oracle", "loss_oracle")
def noise_in_the_forward(script: Script) -> None:
    """A hook adds noise to the hidden states in training."""

    def noise(model: Any) -> None:
        model.model.layers[0].register_forward_hook(
            lambda module, _args, out: out + 0.01 * torch.randn_like(out) if module.training else out
        )

    script.loaded.append(noise)


@mistake("rows_isolated", "forward_matches_architecture")
def attention_not_causal(script: Script) -> None:
    """A patch of attention forgets the causal mask."""

    def patch(model: Any) -> None:
        from transformers.models.llama import modeling_llama

        for layer in model.model.layers:
            layer.self_attn.is_causal = False

            def hook(_module: Any, args: Any, given: dict[str, Any]) -> Any:
                ids = given["hidden_states"] if "hidden_states" in given else args[0]
                rows, width = ids.shape[:2]
                return args, {**given, "attention_mask": torch.ones(rows, 1, width, width, dtype=torch.bool)}

            layer.self_attn.register_forward_pre_hook(hook, with_kwargs=True)
        assert modeling_llama

    script.loaded.append(patch)
