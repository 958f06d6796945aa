"""One fault: a real bug, told as a function that breaks a healthy session from outside. Standard library only."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from suite.training.session import Session

PACKAGE = "benchmarks.detection.bugs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A row of the catalogue. Called with a session it injects the fault; it can be pickled into a training child."""

    id: str
    """Number in the public list (B01, ...), or X01, ... for those that it lacks."""
    title: str
    inject: str
    """module.function below this package, or package.module.function; what it does is the function's docstring."""
    caught_by: tuple[str, ...]
    """Checks that must name it: all of them fail in a run of `settings`."""
    seen_in: str = "well known, without a thread"
    """Repository#thread."""
    settings: tuple[str, ...] = ()
    """What a run must ask for so that the faulty code runs at all, as for --set."""
    tier: str = "quick"
    """quick or convergence: the first tier whose evidence names it."""
    device: str = "cpu"
    """Where it can be shown."""

    def settings_on(self, *, real: bool) -> tuple[str, ...]:
        """The settings, on real weights without those of the model's shape: they have the shape that they have."""
        return tuple(s for s in self.settings if not (real and s.startswith("model.")))

    @property
    def kind(self) -> str:
        """The class of bugs it belongs to, which is its module's name: adapters, loss, data, ..."""
        return self.inject.rpartition(".")[0]

    @property
    def function(self) -> Callable[[Session], None]:
        """The function itself. Imports torch."""
        module, _, name = self.inject.rpartition(".")
        found: Any = getattr(importlib.import_module(f"{PACKAGE}.{module}"), name)
        return found  # type: ignore[no-any-return]

    @property
    def mechanism(self) -> str:
        """What it does, in the words of the function's docstring, read from its file: importing it would take torch."""
        module, _, name = self.inject.rpartition(".")
        return _docstrings(module)[name]

    def __call__(self, session: Session) -> None:
        """The session is broken in this one way."""
        self.function(session)


@cache
def _docstrings(module: str) -> dict[str, str]:
    """Of the functions of this module of the package."""
    path = Path(__file__).parent.joinpath(*module.split(".")).with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name: ast.get_docstring(node) or "" for node in tree.body if isinstance(node, ast.FunctionDef)}
