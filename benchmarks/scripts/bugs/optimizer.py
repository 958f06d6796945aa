"""Mistakes in gradients, optimizer, schedule and what callbacks do to them."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.scripts.bugs.mistake import mistake
from benchmarks.scripts.parts import callback
from benchmarks.scripts.script import Script


@mistake("accumulation_oracle", "adapter_algebra")
def gradient_doubled(script: Script) -> None:
    """A hook doubles the gradient of one kind of adapter."""

    def hook(model: Any) -> None:
        for name, parameter in model.named_parameters():
            if "v_proj.lora_B" in name:
                parameter.register_hook(lambda gradient: 2 * gradient)

    script.adapted.append(hook)


@mistake("lora_gradient_schedule", "accumulation_oracle")
def gradient_cut(script: Script) -> None:
    """A detach in the first layer cuts the gradient of what lies below."""

    def cut(model: Any) -> None:
        model.get_decoder().layers[0].register_forward_hook(lambda _module, _args, out: out.detach())

    script.adapted.append(cut)


@mistake("optimizer_coverage", "trainable_moved")
def optimizer_of_another_model(script: Script) -> None:
    """The optimizer was built from another instance of the model."""

    def swap(trainer: Any) -> None:
        model, _ = script.model_and_tokenizer()
        trainer.optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)

    script.built.append(swap)


@mistake("optimizer_coverage")
def optimizer_of_half(script: Script) -> None:
    """The optimizer holds the second factors alone."""

    def swap(trainer: Any) -> None:
        held = [p for name, p in trainer.model.named_parameters() if ".lora_B." in name]
        trainer.optimizer = torch.optim.AdamW(held, lr=1e-3, weight_decay=0.0)

    script.built.append(swap)


@mistake("calls_in_order", "learning_rate_trace")
def schedule_stepped_twice(script: Script) -> None:
    """A callback steps the schedule, which the Trainer does already."""
    script.built.append(callback("on_step_end", lambda lr_scheduler, **_: lr_scheduler.step()))


@mistake("learning_rate_trace")
def rate_overwritten(script: Script) -> None:
    """A callback for layer-wise rates sets the rate to a constant."""

    def overwrite(optimizer: Any, **_: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 5e-4

    script.built.append(callback("on_step_begin", overwrite))


@mistake("updates_match_adamw")
def state_cleared(script: Script) -> None:
    """A callback that saves memory clears the optimizer's state after each step."""
    script.built.append(
        callback("on_step_end", lambda optimizer, **_: getattr(optimizer, "optimizer", optimizer).state.clear())
    )


@mistake("updates_match_adamw", "accumulation_oracle")
def clipped_again(script: Script) -> None:
    """A callback clips once more, far below the norm that is declared."""
    script.built.append(
        callback("on_pre_optimizer_step", lambda model, **_: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01))
    )


@mistake("updates_match_adamw", "trainable_moved")
def weights_averaged(script: Script) -> None:
    """A callback writes an average of the weights back into the model after each step."""

    def shrink(model: Any, **_: Any) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.mul_(0.97)

    script.built.append(callback("on_step_end", shrink))


@mistake("gradients_cleared", "accumulation_oracle")
def gradients_kept(script: Script) -> None:
    """zero_grad does nothing, since somebody replaced it for speed."""

    def replace(trainer: Any) -> None:
        trainer.model.zero_grad = lambda *args, **kwargs: None

    script.built.append(replace)


@mistake("base_untouched", "state_in_training", "lora_gradient_schedule")
def base_noised(script: Script) -> None:
    """A callback adds noise to all weights, frozen ones too."""

    def noise(model: Any, **_: Any) -> None:
        with torch.no_grad():
            next(p for name, p in model.named_parameters() if "down_proj.base_layer" in name).add_(1e-3)

    script.built.append(callback("on_step_end", noise))


@mistake("weights_in_use")
def another_adapter_active(script: Script) -> None:
    """A second adapter is added for a comparison, and stays the active one."""

    def add(model: Any) -> None:
        from peft import LoraConfig

        model.add_adapter("other", LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"]))
        model.set_adapter("other")
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(".lora_" in name)

    script.adapted.append(add)
