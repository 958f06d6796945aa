"""What a loop declares: its model, and the groups of its optimizer. Imports torch."""

from collections.abc import Mapping
from typing import Any

import torch

from tunecheck.core.premises import OF_A_LOOP, Premise, opened
from tunecheck.listen.declared import WatchedRun, WatchedTraining, checkpoints, described
from tunecheck.listen.listener import Listener
from tunecheck.listen.optimizers import adamw_settings, highest_rate
from tunecheck.listen.trained_model import dtype_of, is_causal, is_transformers, other_model, other_rows, own_objective
from tunecheck.models.layer_names import attention_kernel, decoder_of
from tunecheck.probes.reference.measures import living
from tunecheck.training.data import Batch
from tunecheck.training.hooks import OwnHooks
from tunecheck.training.restore import model_mode, random_state, uncached, without_repacking


def objective_of(model: Any, given: Mapping[str, Any]) -> str:
    """Return why rows and loss are not those of a causal language model, by its first call; "" where they are."""
    return other_model(model) or other_rows(given) if is_causal(model) else own_objective(model)


def run_of(model: Any, optimizer: Any, listener: Listener, autocast: torch.dtype | None, objective: str) -> WatchedRun:
    """Return what the model and the optimizer of a loop declare."""
    declared, left_open = described(model)
    left_open |= OF_A_LOOP | opened([Premise.CAUSAL_LM], objective)
    settings, why = adamw_settings(optimizer, own=True)
    left_open |= opened([Premise.UPDATE_RULE_KNOWN], why)
    if any(scaler.is_enabled() for scaler in living(torch.amp.GradScaler)):
        scaled = [Premise.LOSS_UNSCALED]
        if not objective or any(group.get("fused") for group in optimizer.param_groups):
            scaled.append(Premise.UPDATE_RULE_KNOWN)
        left_open |= opened(scaled, "a GradScaler scales the loss, and a loop does not declare when it unscales")
    if declared.drops:
        left_open[Premise.LOSS_REPEATABLE] = "the model has dropout, and a loop's passes cannot be repeated without it"
    training = WatchedTraining.model_construct(
        max_steps=listener.options.steps,
        schedule_steps=listener.options.steps,
        use_cache=bool(getattr(getattr(model, "config", None), "use_cache", False)),
        **{"learning_rate": 1.0, **settings},
        max_grad_norm=None,
        precision={torch.bfloat16: "bf16", torch.float16: "fp16"}.get(autocast or dtype_of(model), "fp32"),
        gradient_checkpointing=checkpoints(model),
        attention=attention_kernel(model) if is_transformers(model) else "",
    )
    training._rate = highest_rate(optimizer)
    sources = {**declared.sources, "training": f"parameter groups of the {type(optimizer).__name__}"}
    return declared.under(training=training, left_open=left_open, sources=sources, id=listener.run_id, trainer="a loop")


def cast_within(model: Any, batch: Batch) -> torch.dtype | None:
    """Return the dtype to which the model's own forward casts, by a pass of one token; None without autocast."""
    seen: list[torch.dtype | None] = []

    def look(*_: Any) -> None:
        kind = model.device.type
        seen.append(torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None)

    with OwnHooks() as hooks, model_mode(model, False), random_state(model.device), without_repacking(model):
        hooks.before(decoder_of(model), look)
        with torch.no_grad():
            uncached(model, input_ids=batch.input_ids[:1, :1].to(model.device))
    return seen[0] if seen else None
