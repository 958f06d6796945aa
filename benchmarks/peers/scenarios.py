"""The scripts that every peer is given: mistakes and healthy ones of benchmarks/scripts, long enough for rules that
read a log. Imports torch."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType

from benchmarks.peers.causes import BUG, CAUSES, GOOD
from benchmarks.scripts import healthy
from benchmarks.scripts import script as parts
from benchmarks.scripts.bugs import MISTAKES, mistake
from benchmarks.scripts.healthy import HEALTHY
from benchmarks.scripts.script import Script

STEPS, ROWS = 12, 120
"""Two peers judge nothing before 10 logged losses."""
TRAINED = """from contextlib import nullcontext

train(script, Path("out"), lambda trainer: nullcontext(), lambda model, tokenizer: nullcontext())"""
"""The end of a script as a file: nothing listens."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One script."""

    kind: str
    """`BUG` or `GOOD`."""
    name: str

    def script(self) -> Script:
        """Return the script with its change made."""
        script = Script(steps=STEPS, rows=ROWS)
        for change in [MISTAKES[self.name].change] if self.kind == BUG else HEALTHY[self.name]:
            change(script)
        return script

    def source(self) -> str:
        """Return the script as one file, which trains when run: the parts, what the change needs, the training."""
        modules: tuple[ModuleType, ...]
        if self.kind == BUG:
            changes, modules = f"({self.name},)", (mistake, sys.modules[MISTAKES[self.name].change.__module__])
        else:
            changes, modules = _value(healthy, "HEALTHY", self.name), (healthy,)
        body = [*_definitions(modules, changes), f"script = Script(steps={STEPS}, rows={ROWS})"]
        body += [f"for change in {changes}:\n    change(script)", TRAINED]
        return "\n\n\n".join([inspect.getsource(parts), *body]) + "\n"


def _value(module: ModuleType, table: str, key: str) -> str:
    """Return the source of the table's value at this key."""
    for node in ast.walk(ast.parse(text := inspect.getsource(module))):
        if isinstance(node, ast.Dict):
            for name, value in zip(node.keys, node.values, strict=True):
                if isinstance(name, ast.Constant) and name.value == key:
                    return ast.get_source_segment(text, value) or ""
    raise KeyError(f"{table}[{key!r}] is not in the source of {module.__name__}")


def _definitions(modules: Sequence[ModuleType], expression: str) -> Iterator[str]:
    """Yield the modules' imports and those of their definitions that the expression needs, less the decorators."""
    sources = [inspect.getsource(module) for module in modules]
    nodes = [(node, text) for text in sources for node in ast.parse(text).body]
    own = {
        node.name: _names(node.body)
        for node, _ in nodes
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name not in vars(parts)
    }
    needed: set[str] = set()
    names = _names(ast.parse(expression.strip()).body)
    while found := (names & own.keys()) - needed:
        needed |= found
        names |= {name for one in found for name in own[one]}
    for node, text in nodes:
        imports = isinstance(node, ast.Import | ast.ImportFrom) and not re.search(
            "benchmarks|__future__", ast.unparse(node)
        )
        if imports or getattr(node, "name", "") in needed:
            yield ast.get_source_segment(text, node) or ""


def _names(nodes: list[ast.stmt]) -> set[str]:
    return {node.id for each in nodes for node in ast.walk(each) if isinstance(node, ast.Name)}


def scenarios() -> list[Scenario]:
    """Return the healthy scripts, then each mistake that has words of its cause."""
    return [*(Scenario(GOOD, name) for name in HEALTHY), *(Scenario(BUG, name) for name in CAUSES)]
