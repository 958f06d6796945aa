"""Optimizer steps that belong to no training that is judged: the verdict names them."""

import math
from collections import Counter
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from tunecheck.core.check import some
from tunecheck.core.text import counted
from tunecheck.training.events import probing
from tunecheck.training.hooks import Hooks, nothing, same_optimizer

_TAKEN: list[list[Any]] = []
"""Class of each optimizer with the script's line of its first step, and its steps; -inf for one that is judged."""
_OF: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()


def begin() -> Hooks:
    """Count steps from now on, until the hooks that are returned are removed."""
    _TAKEN.clear()
    _OF.clear()
    hooks = Hooks(unless=probing)
    hooks.optimizer_steps(nothing, lambda optimizer, *_: _add(optimizer, 1))
    return hooks


def _add(optimizer: Any, steps: float) -> None:
    if (taken := next((held for one, held in _OF.items() if same_optimizer(one, optimizer)), None)) is None:
        from tunecheck.listen.user_code import of_caller

        at = (f" ({Path(code.file).name}:{code.line})" for code in of_caller())
        taken = _OF[optimizer] = ["".join([type(optimizer).__name__, *at]), 0]
        _TAKEN.append(taken)
    taken[1] += steps


def listened(*optimizers: Any) -> None:
    """Leave these out, whose training is judged."""
    for optimizer in optimizers:
        _add(optimizer, -math.inf)


def told() -> str:
    """Return the other steps in words: "training not judged: 28 steps of AdamW (train.py:31)"; "" for none."""
    totals: Counter[str] = Counter()
    for words, steps in _TAKEN:
        totals[words] += max(steps, 0)
    each = [f"{counted(steps, 'step')} of {words}" for words, steps in (+totals).items()]
    return f"training not judged: {some(each)}" if each else ""
