"""What a message must say to name a mistake, in the words of any tool. No torch."""

from __future__ import annotations

BUG, GOOD = "bug", "healthy"
"""Kinds of scripts."""

CAUSES: dict[str, str] = {
    "labels_shifted": "shift|align",
    "padding_learned": "padd",
    "end_masked_with_padding": r"\beos\b|end token|end.of",
    "nothing_supervised": "no (valid|supervised|target|label)|ignored|ignore.?index|zero.?loss|masked",
    "start_doubled": r"\bbos\b|start token",
    "left_padding_unmasked": "attention.?mask|left.?pad",
    "same_batch": "(same|identical|repeated|duplicate).*(batch|row|sample|example)",
    "rows_drawn_with_replacement": "replacement|(repeated|duplicate).*(row|sample|example)",
    "loss_not_shifted": "shift|align",
    "means_averaged": "accumulat|normali[sz]|num_items",
    "not_divided_by_accumulation": "accumulat|normali[sz]|num_items",
    "loss_in_bf16": "bf16|bfloat16|precision",
    "z_loss_added": "z.?loss|partition|auxiliary|loss.*differs",
    "adapters_frozen_above": r"layers\.1\..*(belong|frozen|grad|change)|frozen|never (changed|updated)",
    "norms_unfrozen": "norm.*(train|frozen|should not)|unexpected.*trainable",
    "scaling_doubled": "scaling|lora_alpha",
    "adapter_starts_changed": "lora_b|initiali[sz]",
    "first_factor_zero": "lora_a.*(grad|change|zero)|lora_b.*(grad|change|zero)|zero grad|initiali[sz]",
    "layer_initialised_again": "up_proj|initiali[sz]|pretrained|weights.*(file|load)",
    "head_untied": "tied|tie|lm_head",
    "epsilon_changed": "eps|norm layer",
    "layer_skipped": "mlp|hook|architecture",
    "noise_in_the_forward": "determinis|random|noise",
    "attention_not_causal": "causal|future",
    "gradient_doubled": "lora_b|gradient.*(scaled|doubled|differ)",
    "gradient_cut": r"layers\.0\..*(grad|change)|no gradient|detach|grad.* none",
    "optimizer_of_another_model": "optimi[sz]er|belong|should change|no parameter|not updat",
    "optimizer_of_half": "lora_a.*(belong|optimi[sz]er|change)|not in the optimi[sz]er",
    "schedule_stepped_twice": "schedul|learning rate|\\blr\\b",
    "rate_overwritten": "schedul|learning rate|\\blr\\b",
    "state_cleared": "optimi[sz]er state|moment",
    "clipped_again": "clip",
    "weights_averaged": "decay|weights? (shrink|shrunk|eroding|changed)",
    "gradients_kept": "zero_grad|accumulating|not cleared|stale gradient",
    "base_noised": "frozen|base_layer|should not change",
    "another_adapter_active": "adapter",
    "evaluated_in_train_mode": "train mode|eval mode|eval\\(\\)|dropout",
    "evaluation_summed": "eval",
    "log_scaled": "logged|reported loss",
    "half_saved": "save|checkpoint",
    "loop_never_clears": "zero_grad|accumulating|not cleared|stale gradient",
    "loop_loss_shifted_twice": "shift|align",
    "loop_same_batch": "(same|identical|repeated|duplicate).*(batch|row|sample|example)",
    "loop_in_eval_mode": "eval mode|eval\\(\\)|train\\(\\)|train mode",
    "loop_optimizer_of_half": "lora_b.*(belong|optimi[sz]er|change)|not in the optimi[sz]er",
    "loop_state_lost": "optimi[sz]er state|moment",
    "loop_loss_without_mask": "mask|padd|prompt|ignore.?index",
    "loop_loss_overflows": r"\bnan\b|\binf\b|finite",
}
"""Words, one of which a message must have to name the cause; generous, since every message is in the results."""


def base_of(name: str) -> str:
    """Return the healthy script that a mistake is made in."""
    return "loop" if name.startswith("loop") else "lora"
