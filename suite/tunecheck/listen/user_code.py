"""The script's own code in its training: overrides, callables, hooks, the line that trains, and writes to weights."""

import gc
import inspect
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import distributions
from pathlib import Path
from traceback import walk_stack
from types import CellType, FrameType, FunctionType, MethodType
from typing import Any

import torch

from tunecheck.core.evidence import UserCode, WrittenByScript
from tunecheck.models.layer_names import base_of
from tunecheck.training.hooks import Hooks
from tunecheck.training.restore import model_mode, random_state, uncached, without_dropout, without_repacking

CALLABLES = (
    *("data_collator", "formatting_func", "compute_loss_func"),
    *("compute_metrics", "preprocess_logits_for_metrics", "model_init"),
)
"""Attributes of a Trainer that hold a function of the script's."""
LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
SUITE = str(Path(__file__).parents[1])
DEFINITION = re.compile(r"\s*(async\s+def|def|class)\s")
CONTAINERS = dict, tuple, list, CellType, MethodType, partial
SOURCE_LINES, LINE_CHARACTERS = 400, 200
"""Most lines of a part whose source a trace keeps, and most characters of each."""


def of_trainer(trainer: Any) -> Iterator[UserCode]:
    """Yield what the script overrides of this Trainer, hands it, and where it has it train."""
    base = next(kind for kind in type(trainer).__mro__ if kind.__module__ == "transformers.trainer")
    held = [*vars(trainer).items(), *(item for kind in type(trainer).__mro__ for item in vars(kind).items())]
    overridden = {name: value for name, value in reversed(held) if hasattr(base, name) and callable(value)}
    found = [code_of(name, value) for name, value in overridden.items()]
    found += [code_of(name, value) for name in CALLABLES if (value := getattr(trainer, name, None)) is not None]
    found += [code_of("callback", type(callback)) for callback in trainer.callback_handler.callbacks]
    yield from (code for code in found if code is not None)
    yield from of_caller()


def overrides(trainer: Any, method: str) -> bool:
    """Return whether this method of a Trainer is the script's own; older releases lack some."""
    return hasattr(trainer, method) and code_of(method, getattr(trainer, method)) is not None


def of_caller() -> Iterator[UserCode]:
    """Yield the line of the script that is being executed: the innermost one that is no library's."""
    for frame, line in walk_stack(sys._getframe(1)):
        if is_users((code := frame.f_code).co_filename):
            written = UserCode(role="script", name=code.co_name, file=code.co_filename, line=line)
            with suppress(OSError):  # a notebook's cell, say, that nobody keeps
                written = _with_source(written, frame)
            yield written
            return


def _with_source(code: UserCode, value: Any) -> UserCode:
    """Return the code with the source lines around its line. Raises OSError where they cannot be read."""
    lines, first = inspect.getsourcelines(value)
    first = max(first, 1)  # a module begins with line 0
    begin = max(0, code.line - first - SOURCE_LINES // 2)
    kept = tuple(line.rstrip()[:LINE_CHARACTERS] for line in lines[begin : begin + SOURCE_LINES])
    return replace(code, first_line=first + begin, source=kept)


def user_modules(model: Any) -> list[str]:
    """Return the classes of the script's own whose modules it has put into this model, as adapters by hand."""
    kinds = {type(module) for module in model.modules() if module is not model}
    return sorted(kind.__name__ for kind in kinds if code_of("module", kind) is not None)


def departure(model: Any) -> str:
    """Return what a model of transformers has that its class does not build of its configuration; "" for nothing."""
    inner = base_of(model)
    if own := user_modules(model):
        return f"the model contains the script's own {own[0]}"
    if code_of("forward", type(inner).forward) is not None:
        return f"the forward pass of {type(inner).__name__} is the script's own"
    head = inner.get_output_embeddings()
    return "" if hasattr(head, "weight") else f"the model's head is a {type(head).__name__}"


def code_of(role: str, value: Any) -> UserCode | None:
    """Return where a function, a class or an object that can be called is written; None where it is a library's."""
    while isinstance(value, partial):
        value = value.func
    value = inspect.unwrap(value)
    if not (inspect.isroutine(value) or inspect.isclass(value)):
        value = type(value)
    try:
        if not is_users(file := inspect.getsourcefile(value) or ""):
            return None
        lines, first = inspect.getsourcelines(value)
    except (TypeError, OSError):
        return None
    defined = next((number for number, line in enumerate(lines) if DEFINITION.match(line)), 0)  # not its decorators
    return _with_source(UserCode(role=role, name=value.__qualname__, file=file, line=first + defined), value)


def is_users(file: str) -> bool:
    """Return whether this is a file of the script's own: of no library that is installed, and none of ours."""
    path = Path(file).resolve()
    if not path.exists() or any(path.is_relative_to(folder) for folder in (*LIBRARIES, SUITE, sys.prefix)):
        return False
    return not any(path.relative_to(folder).parts[0] in _installed(folder) for folder in path.parents)


@cache
def _installed(folder: Path) -> set[str]:
    """Return what pip has installed in this folder, as with --target: its packages and modules."""
    return {file.parts[0] for found in distributions(path=[str(folder)]) for file in found.files or ()}


def is_held(thing: Any, depth: int = 3, aside: frozenset[int] = frozenset()) -> bool:
    """Return whether anything but our own code refers to this, up to this depth of containers; 0.1 s and more."""
    holders = gc.get_referrers(thing)
    aside |= {id(holders)}
    for holder in holders:  # no generator, which would be a holder, too
        own = isinstance(holder, FrameType) and holder.f_code.co_filename.startswith(SUITE)
        module = holder.__module__ if isinstance(holder, FunctionType) else type(holder).__module__
        if own or id(holder) in aside or str(module).partition(".")[0] == "tunecheck":
            continue
        if not depth or not isinstance(holder, CONTAINERS) or is_held(holder, depth - 1, aside):
            return True
    return False


def noise_by_hooks(model: Any) -> str:
    """Return which hook of the script's own adds noise to the embeddings in training alone; "" without one."""
    embedding = model.get_input_embeddings()
    for hook in (*embedding._forward_pre_hooks.values(), *embedding._forward_hooks.values()):
        code = code_of("hook", hook)
        if code is not None and _varies(model, training=True) and not _varies(model, training=False):
            return f"the script's hook {code.name} ({Path(code.file).name}:{code.line}) adds noise to the embeddings"
    return ""


@torch.no_grad()
def _varies(model: Any, *, training: bool) -> bool:
    """Return whether two equal forward passes differ although nothing is dropped."""
    ids = torch.arange(16, device=model.device)[None] % len(model.get_input_embeddings().weight)
    with random_state(model.device), without_repacking(model), without_dropout(model), model_mode(model, training):
        first, second = (uncached(model, input_ids=ids).logits for _ in range(2))
    return not torch.equal(first, second)


CONVERTING = frozenset({"torch", "transformers", "peft", "accelerate", "bitsandbytes", "lightning", "trl"})
"""Libraries whose writes to weights load, initialise, merge, resize or convert them."""
OPERATORS = ("__iadd__", "__isub__", "__imul__", "__itruediv__", "__setitem__")
VALUES_STAY = frozenset({"requires_grad_", "detach_", "share_memory_"})
IN_PLACE = *sorted({n for n in dir(torch.Tensor) if n[0] != "_" and n[-1] == "_"} - VALUES_STAY), *OPERATORS
OF_LISTS = tuple(f"_foreach_{name}_" for name in ("add", "clamp_max", "clamp_min", "copy", "lerp", "mul", "sub"))


class UserWrites:
    """Hears who writes to what a model learns, between a step's end and the next forward pass alone.

    Writes of libraries (loads, initialisations, merges) do not count, nor do values that a tensor had before.
    """

    def __init__(self, model: Any, failed: Callable[[str], None]) -> None:
        self._hooks = Hooks(failed)
        self._trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._held = {_storage(p): (name, p) for name, p in self._trained}
        """Address of a tensor's memory to its name and itself, which may leave it to others."""
        self._now: dict[str, str] = {}
        self._lines: dict[str, str] = {}
        self._others: set[str] = set()
        """Tensors that were not written by the script alone, or with values that they had before."""
        self._states = [self._state()]

    def begin(self) -> None:
        """A step has ended."""
        self._states.append(self._state())
        self._held = {_storage(p): (name, p) for name, p in self._trained}
        for name in IN_PLACE:
            self._hooks.function(torch.Tensor, name, after=self._wrote)
        for name in OF_LISTS:
            self._hooks.function(torch, name, after=lambda result, tensors, *_, **__: self._wrote(result, *tensors))

    def end(self) -> None:
        """The next forward pass begins, or none comes."""
        self._hooks.remove()
        if self._now:
            states = zip(self._trained, zip(self._state(), *self._states, strict=True), strict=True)
            self._others |= {name for (name, _), (now, *before) in states if now != before[-1] and now in before}
            self._lines |= self._now
            self._now = {}

    def record(self) -> list[WrittenByScript]:
        """Return what was heard."""
        self.end()
        lines = {name: line for name, line in self._lines.items() if name not in self._others}
        return [WrittenByScript(lines=lines)] if lines else []

    def _wrote(self, result: Any, *tensors: Any, **_: Any) -> None:
        plain = [_storage(tensor) for tensor in tensors if type(tensor) in (torch.Tensor, torch.nn.Parameter)]
        held = ((at, *self._held[at]) for at in plain if at in self._held)
        for name in (name for at, name, own in held if _storage(own) == at):
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
