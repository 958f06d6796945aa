"""What a loop that is not ours declares: its model, and the groups of its optimizer.

Imports torch; in the watched process only.
"""

from __future__ import annotations

import gc
from typing import Any

import torch

from suite.watch.declared import A_LOOP, WatchedRun, WatchedTraining, checkpoints, described, groups_of
from suite.watch.listener import Listener

NOT_DECLARED = {
    "learning_rate_trace": "a loop declares no schedule",
    "gradients_cleared": "a loop may clear them between forward and backward; accumulation_oracle judges the sum",
    "checkpointing_as_asked": "a loop declares nothing of checkpointing but in the model itself",
    "supervised_tokens": "a loop reports no number of tokens",
    "loss_logged": "a loop logs as it likes",
    "gradient_norm_reported": "a loop reports no norm; updates_match_adamw judges what is clipped",
}


def run_of(model: Any, optimizer: Any, listener: Listener, dtype: torch.dtype) -> WatchedRun:
    """Return what the model and the optimizer of a loop declare; `dtype` is that of its arithmetic."""
    declared, unjudged, sources = described(model)
    unjudged |= NOT_DECLARED
    settings, why = groups_of(optimizer)
    if why:
        unjudged["updates_match_adamw"] = unjudged["optimizer_coverage"] = why
    if _scales():
        scaled = ("loss_oracle", "accumulation_oracle", "weight_gradients", "gradient_norm_reported")
        for check in (*scaled, "updates_match_adamw"):
            unjudged[check] = "a GradScaler scales the loss, and a loop does not say when it is undone"
    if declared.drops:
        reason = "the model has dropout, and a loop's passes cannot be made again without"
        unjudged["loss_oracle"] = unjudged["accumulation_oracle"] = reason
    training = WatchedTraining.model_construct(
        max_steps=listener.options.steps,
        schedule_steps=listener.options.steps,
        use_cache=bool(getattr(model.config, "use_cache", False)),
        **{"learning_rate": 1.0, **settings},
        max_grad_norm=None,
        precision={torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype, "fp32"),
        gradient_checkpointing=checkpoints(model),
        attention=declared.attention,
    )
    training._rate = float(optimizer.param_groups[0]["lr"])
    return declared.run(
        id=listener.run_id,
        trainer=A_LOOP,
        training=training,
        unjudged=unjudged,
        sources={**sources, "training": f"groups of the {type(optimizer).__name__}"},
    )


def optimizer_of(model: Any) -> Any:
    """Return the optimizer that holds most of what the model learns; None where there is none yet."""
    learning = {id(p) for p in model.parameters() if p.requires_grad}
    found: tuple[int, Any] = (0, None)
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.optim.Optimizer) and getattr(thing, "param_groups", None):
            held = sum(id(p) in learning for group in thing.param_groups for p in group["params"])
            wraps = hasattr(thing, "optimizer")  # accelerate's is one around another
            found = max(found, (held, None if wraps else thing), key=lambda pair: (pair[0], pair[1] is not None))
    return found[1]


def _scales() -> bool:
    """Return whether this process has a gradient scaler at work."""
    scalers = (thing for thing in gc.get_objects() if issubclass(type(thing), torch.amp.GradScaler))
    return any(scaler.is_enabled() for scaler in scalers)
