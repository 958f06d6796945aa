"""Hooks in passes that are not ours, behind one guard: an error of our code ends our listening, never the training.

Modules, tensors, optimizers and functions are hooked here alone; a test holds it. What a guarded hook returns is
dropped, so that it replaces nothing of the training's. An error of the training's own code passes through unchanged.
"""

from __future__ import annotations

import functools
import itertools
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import cache, partial
from types import ModuleType
from typing import Any

Call = Callable[..., Any]


def located(error: BaseException) -> str:
    """Return an error's class, its words and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f" ({frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{at}"


def _is_traced() -> Callable[[], bool]:
    """Return what tells whether torch.compile traces the present call, which answers it while it traces."""
    torch = sys.modules.get("torch")
    return getattr(getattr(torch, "compiler", None), "is_compiling", bool)


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


class Hooks:
    """Hooks of one listener, removed together. After an error of one of them none of them does anything any more."""

    def __init__(self, failed: Callable[[str], None] = nothing) -> None:
        """`failed` is called once, with what went wrong."""
        self.error = ""
        """What went wrong first, and where; empty while nothing did."""
        self._failed = failed
        self._undo: list[Callable[[], object]] = []

    def __enter__(self) -> Hooks:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Leave everything as it was before."""
        while self._undo:
            self._undo.pop()()

    def undo(self, call: Callable[[], object]) -> None:
        """Call this when the hooks are removed."""
        self._undo.append(call)

    def before(self, module: Any, call: Call, *, with_kwargs: bool = False) -> None:
        """Call this before each forward of the module."""
        self._undo.append(module.register_forward_pre_hook(self.guarded(call), with_kwargs=with_kwargs).remove)

    def after(self, module: Any, call: Call, *, with_kwargs: bool = False, always_call: bool = False) -> None:
        """Call this after each forward of the module; `always_call` also after one that raised."""
        hook = module.register_forward_hook(self.guarded(call), with_kwargs=with_kwargs, always_call=always_call)
        self._undo.append(hook.remove)

    def around(self, module: Any, context: Callable[[], AbstractContextManager[Any]]) -> None:
        """Have each forward of the module run inside of such a context, which is left whatever goes wrong."""
        entered: list[ExitStack] = []

        def enter(*_: Any) -> None:
            entered.append(ExitStack())
            self.guarded(lambda: entered[-1].enter_context(context()))()

        def leave(*_: Any) -> None:
            if entered:
                self._caught(entered.pop().close)

        self._undo.append(module.register_forward_pre_hook(enter).remove)
        self._undo.append(module.register_forward_hook(leave, always_call=True).remove)

    def gradient(self, tensor: Any, call: Call) -> None:
        """Call this with the tensor's gradient."""
        self._undo.append(tensor.register_hook(self.guarded(call)).remove)

    def first_modules(self, call: Call) -> Callable[[], None]:
        """Call this before each forward of any module. Return what ends it: it slows every call."""
        from torch.nn.modules.module import register_module_forward_pre_hook

        remove: Callable[[], None] = register_module_forward_pre_hook(self.guarded(call)).remove
        self._undo.append(remove)
        return remove

    def optimizer_steps(self, before: Call, after: Call) -> None:
        """Call these before and after each step of any optimizer; what the first returns are its new arguments."""
        _hook_optimizers()
        number = next(_NUMBERS)
        _STEPS[number] = self.guarded(before, returns=True), self.guarded(after)
        self._undo.append(lambda: _STEPS.pop(number))

    def function(self, owner: Any, name: str, *, before: Call = nothing, after: Call = nothing) -> None:
        """Call these before a function, with its arguments, and after it, with its result before them.

        `owner` is a class, a module or one object. Modules that imported a function by name hold the new one, too.
        """
        function, begins, ended = getattr(owner, name), self.guarded(before), self.guarded(after)

        @functools.wraps(function)
        def telling(*args: Any, **kwargs: Any) -> Any:
            begins(*args, **kwargs)
            result = function(*args, **kwargs)
            ended(result, *args, **kwargs)
            return result

        holders = [owner]
        if isinstance(owner, ModuleType):
            holders += [m for m in list(sys.modules.values()) if m is not owner and vars(m).get(name) is function]
        for holder in holders:
            inherited = name not in vars(holder)
            setattr(holder, name, telling)
            self._undo.append(partial(delattr, holder, name) if inherited else partial(setattr, holder, name, function))

    def guarded(self, call: Call, *, returns: bool = False) -> Call:
        """Return what calls this and raises nothing of it; with `returns` it hands on what it returns.

        Where torch.compile makes one function of what is hooked it does nothing, and is no part of that function.
        """
        traced = _is_traced()

        def hook(*args: Any, **kwargs: Any) -> Any:
            value = None if traced() or self.error else self._caught(call, *args, **kwargs)
            return value if returns else None

        return hook

    def _caught(self, call: Call, *args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except Exception as error:
            if not self.error:
                self.error = located(error)
                with suppress(Exception):
                    self._failed(self.error)
            traceback.clear_frames(error.__traceback__)  # they hold tensors of the pass
            return None


class OwnHooks(Hooks):
    """Hooks in passes that we make ourselves: an error is the pass's, and what a hook returns takes its place."""

    def guarded(self, call: Call, *, returns: bool = False) -> Call:
        """Return the call as it is."""
        return call


def same_optimizer(one: Any, other: Any) -> bool:
    """Return whether these are one optimizer, or one around the other: the groups are the same objects.

    Of SAM (arXiv 2010.01412) the inner one alone steps, of Lookahead (arXiv 1907.08610) both do.
    """
    return one is other or one.param_groups[0] is other.param_groups[0]


_NUMBERS = itertools.count()
_STEPS: dict[int, tuple[Call, Call]] = {}
"""What is to be called before and after each optimizer's step."""


@cache
def _hook_optimizers() -> None:
    """Hook every optimizer's step, for good: torch has no hook removed while it runs, which is when listening ends."""
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    def begins(optimizer: Any, args: Any, kwargs: Any) -> Any:
        changed = None
        if _within_its_own(optimizer):
            return None
        for before, _ in list(_STEPS.values()):
            if (given := before(optimizer, args, kwargs)) is not None:
                changed = args, kwargs = given
        return changed

    def ended(optimizer: Any, *given: Any) -> None:
        if not _within_its_own(optimizer):
            for _, after in list(_STEPS.values()):
                after(optimizer, *given)

    register_optimizer_step_pre_hook(begins)
    register_optimizer_step_post_hook(ended)


def _within_its_own(optimizer: Any) -> bool:
    """Return whether a class that overrides `step` calls the one that it derives from: torch hooks both."""
    frame, steps, torch_file = sys._getframe(1), 0, sys.modules["torch.optim.optimizer"].__file__
    while frame is not None and steps < 2:
        code = frame.f_code
        if code.co_name == "wrapper" and code.co_filename == torch_file:
            steps += frame.f_locals.get("self") is optimizer
        frame = frame.f_back  # type: ignore[assignment]
    return steps > 1
