"""What the groups of an optimizer declare of the tensors in them."""

from typing import Any


def without_rate(*optimizers: Any) -> bool:
    """Return whether every group has a rate of 0, by which a step changes nothing. None is an optimizer's own."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return all(group["lr"] is not None and float(group["lr"]) == 0 for group in groups)


def highest_rate(*optimizers: Any) -> float:
    """Return the highest rate of all groups; 1.0 where the optimizer sets its own (None)."""
    rates = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    return max((float(rate) for rate in rates if rate is not None), default=1.0)


def spelled_groups(optimizer: Any) -> list[dict[str, Any]]:
    """Return the settings of each group as plain JSON, with the number of its tensors in their place."""
    return [
        {key: len(value) if key == "params" else _plain(value) for key, value in sorted(group.items())}
        for group in optimizer.param_groups
    ]


def _plain(value: Any) -> Any:
    """Return a setting as plain JSON: a rate may be a tensor, and an object of the script's own has no text to keep."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return float(value) if getattr(value, "numel", lambda: 0)() == 1 else type(value).__name__


def groups_of(optimizer: Any, *, own: bool = False) -> tuple[dict[str, Any], str]:
    """Return the settings of an AdamW's groups, as fields of a run's training; else nothing, and why.

    With `own` each group's rate and decay are what it declares of its tensors itself.
    """
    from tunecheck.runner.setup import optimizer_kind

    first, parts = optimizer.param_groups[0], getattr(optimizer, "parts", [optimizer])
    keys = ("betas", "eps") if own else ("lr", "weight_decay", "betas", "eps", "initial_lr")
    if any(
        {key: group.get(key) for key in keys} != {key: first.get(key) for key in keys}
        for group in optimizer.param_groups
    ):
        return {}, "the optimizer's parameter groups have different settings"
    switches = [name for name in ("amsgrad", "maximize") if any(group.get(name) for group in optimizer.param_groups)]
    kinds = " and ".join(sorted({optimizer_kind(part) for part in parts}))
    if switches or kinds != "AdamW":
        return {}, f"tunecheck does not know the closed form of {' with '.join([kinds, *switches])}"
    return {
        "learning_rate": first.get("initial_lr") or first["lr"] or 1.0,
        "weight_decay": first["weight_decay"],
        "adam_beta1": first["betas"][0],
        "adam_beta2": first["betas"][1],
        "adam_epsilon": first["eps"],
    }, ""
