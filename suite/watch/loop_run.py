"""What a loop that is not ours declares: its model, and the groups of its optimizer.

Imports torch; in the watched process only.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
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


class _Together:
    """Several optimizers that step one after the other, as one."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self.param_groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        self.optimizers = optimizers

    @property
    def state(self) -> dict[Any, Any]:
        """Return the state of all."""
        return {tensor: state for optimizer in self.optimizers for tensor, state in optimizer.state.items()}


def together(optimizers: Sequence[Any]) -> Any:
    """Return these optimizers as one, by the name of their classes: that of AdamW, where all are."""
    if len(optimizers) == 1:
        return optimizers[0]
    kinds = sorted({type(optimizer).__name__ for optimizer in optimizers})
    return type(" and ".join(kinds), (_Together,), {})(optimizers)


def optimizers_of(model: Any) -> list[Any]:
    """Return the fewest optimizers that hold what the model learns, the one with most of it first; [] without any."""
    missing = {id(p) for p in model.parameters() if p.requires_grad}
    # accelerate's is one around another; an old one that is not yet collected holds the same tensors
    things = (t for t in gc.get_objects() if issubclass(type(t), torch.optim.Optimizer) and not hasattr(t, "optimizer"))
    made = [optimizer for optimizer in things if hasattr(optimizer, "param_groups")]
    waiting = [(o, {id(p) for group in o.param_groups for p in group["params"]}) for o in made]
    found = []
    while waiting:
        optimizer, held = max(waiting, key=lambda pair: len(pair[1] & missing))
        if not held & missing:
            break
        found.append(optimizer)
        missing -= held
        waiting = [pair for pair in waiting if pair[0] is not optimizer]
    return found


def _scales() -> bool:
    """Return whether this process has a gradient scaler at work."""
    scalers = (thing for thing in gc.get_objects() if issubclass(type(thing), torch.amp.GradScaler))
    return any(scaler.is_enabled() for scaler in scalers)
