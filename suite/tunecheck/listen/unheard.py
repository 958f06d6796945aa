"""Optimizer steps of a process that belong to no training that is judged, so that the verdict can name them."""

from collections import Counter
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from tunecheck.core.check import some
from tunecheck.core.text import counted
from tunecheck.training.events import probing
from tunecheck.training.hooks import Hooks, nothing, same_optimizer

UNHEARD = "unheard.txt"
"""File of a session's folder, a line for each process."""
_LISTENED: WeakSet[Any] = WeakSet()
"""Optimizers of the trainings that are judged."""
_TAKEN: Counter[str] = Counter()
"""Class of all others, and the script's line of its first step, to the steps."""
_BY: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()
"""The same of each that lives: it may be listened to later."""


def begin() -> Hooks:
    """Count steps from now on, until the hooks that are returned are removed."""
    _TAKEN.clear()
    _BY.clear()
    hooks = Hooks(unless=probing)
    hooks.optimizer_steps(nothing, _stepped)
    return hooks


def _stepped(optimizer: Any, *_: Any) -> None:
    if any(same_optimizer(optimizer, each) for each in _LISTENED):
        return
    from tunecheck.listen.user_code import of_caller

    if not (taken := _BY.setdefault(optimizer, Counter())):
        at = [f" ({Path(code.file).name}:{code.line})" for code in of_caller()]
        taken[type(optimizer).__name__ + "".join(at)] = 0
    for words in taken:
        taken[words] += 1
        _TAKEN[words] += 1


def listened(*optimizers: Any) -> None:
    """Count no step of these, whose training is judged."""
    _LISTENED.update(optimizers)
    for one in [one for one in _BY if any(same_optimizer(one, each) for each in optimizers)]:
        _TAKEN.subtract(_BY.pop(one))


def told() -> str:
    """Return these steps in words: "28 steps of AdamW (train.py:31)"; "" for none."""
    return some([f"{counted(steps, 'step')} of {words}" for words, steps in (+_TAKEN).items()])


def at_exit(folder: str) -> None:
    """Leave the words in the session's folder."""
    if words := told():
        with (Path(folder) / UNHEARD).open("a", encoding="utf-8") as file:
            file.write(f"{words}\n")
