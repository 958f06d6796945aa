"""Trained weights that a loop's script writes in place between two optimizer steps, and the line that does.

Such writes pull slow weights, clip, project, average or add noise. Writes of libraries (loads, initialisations, merges)
do not count, nor do values that a tensor had before. In the watched process only.
"""

import sys
from collections.abc import Callable
from traceback import walk_stack
from typing import Any

import torch

from tunecheck.core.evidence import WrittenByScript
from tunecheck.listen.user_code import SUITE
from tunecheck.training.hooks import Hooks

CONVERTING = frozenset({"torch", "transformers", "peft", "accelerate", "bitsandbytes", "lightning", "trl"})
"""Libraries whose writes to weights load, initialise, merge, resize or convert them."""
OPERATORS = ("__iadd__", "__isub__", "__imul__", "__itruediv__", "__setitem__")
VALUES_STAY = frozenset({"requires_grad_", "detach_", "share_memory_"})
IN_PLACE = *sorted({n for n in dir(torch.Tensor) if n[0] != "_" and n[-1] == "_"} - VALUES_STAY), *OPERATORS
OF_LISTS = tuple(f"_foreach_{name}_" for name in ("add", "clamp_max", "clamp_min", "copy", "lerp", "mul", "sub"))


class UserWrites:
    """Hears who writes to what a model learns, between a step's end and the next forward pass alone."""

    def __init__(self, model: Any, failed: Callable[[str], None]) -> None:
        self._hooks = Hooks(failed)
        self._trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._held = {_storage(p): name for name, p in self._trained}
        """Address of a tensor's memory to its name."""
        self._now: dict[str, str] = {}
        self._lines: dict[str, str] = {}
        self._others: set[str] = set()
        """Tensors that were not written by the script alone, or with values that they had before."""
        self._states = [self._state()]

    def begin(self) -> None:
        """A step has ended."""
        self._states.append(self._state())
        self._held = {_storage(p): name for name, p in self._trained}
        for name in IN_PLACE:
            self._hooks.function(torch.Tensor, name, after=self._wrote)
        for name in OF_LISTS:
            self._hooks.function(torch, name, after=lambda result, tensors, *_, **__: self._wrote(result, *tensors))

    def end(self) -> None:
        """The next forward pass begins, or none comes."""
        self._hooks.remove()
        if self._now:
            state, last = self._state(), self._states[-1]
            for number, (name, _) in enumerate(self._trained):
                if state[number] != last[number] and any(state[number] == before[number] for before in self._states):
                    self._others.add(name)
            self._lines |= self._now
            self._now = {}

    def record(self) -> list[WrittenByScript]:
        """Return what was heard."""
        self.end()
        lines = {name: line for name, line in self._lines.items() if name not in self._others}
        return [WrittenByScript(lines=lines)] if lines else []

    def _wrote(self, result: Any, *tensors: Any, **_: Any) -> None:
        for tensor in tensors:
            if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
                continue
            if (name := self._held.get(_storage(tensor))) is None:
                continue
            if line := _line_of_script():
                self._now[name] = line
            else:
                self._others.add(name)

    def _state(self) -> list[tuple[float, ...]]:
        """Return a sum and a norm of each tensor, by which its former values are known again."""
        wide = {"dtype": torch.float64}
        with torch.no_grad():
            sums = [torch.stack([p.sum(**wide), torch.linalg.vector_norm(p, **wide)]) for _, p in self._trained]
            return [tuple(each.tolist()) for each in sums]


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _line_of_script() -> str:
    """Return the file and line that called the operation; "" where a library did that converts weights."""
    for frame, line in walk_stack(sys._getframe(1)):
        file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
        if not file.startswith(SUITE) and module != "torch._tensor":
            return "" if module.partition(".")[0] in CONVERTING else f"{file.rpartition('/')[2]}:{line}"
    return ""
