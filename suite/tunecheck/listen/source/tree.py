"""The parsed files of a script, and what several rules ask of them."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache, cached_property

from tunecheck.core.check import grouped
from tunecheck.core.evidence import SlipKind

Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor | ast.While
Found = tuple[SlipKind, str, str, int]
"""Kind of a slip, what is wrong in it, its file and its line."""


class Trees:
    """Files of a script with their syntax trees."""

    def __init__(self, trees: Mapping[str, ast.Module], whole: bool) -> None:
        self.nodes = {file: [*ast.walk(tree)] for file, tree in trees.items()}
        self.whole = whole
        """Whether the script has no other files, which may read what these write."""

    def __iter__(self) -> Iterator[tuple[str, ast.AST]]:
        """Yield every node with its file."""
        return ((file, node) for file, nodes in self.nodes.items() for node in nodes)

    @cached_property
    def scopes(self) -> list[tuple[str, ast.Module | Function, list[ast.AST]]]:
        """Modules and functions with their files, and with what is `within` each."""
        return [(file, node, within(node)) for file, node in self if isinstance(node, ast.Module | Function)]

    @cached_property
    def read(self) -> set[str]:
        """All names that are read in any file; see `names_read`."""
        return {name for nodes in self.nodes.values() for name in names_read(nodes[0])}

    @cached_property
    def names(self) -> set[str]:
        """All names in any file, those that are only written and those of parameters included."""
        names = {name for _, node in self if (name := name_of(node))}
        return names | {node.arg for _, node in self if isinstance(node, ast.arg | ast.keyword) and node.arg}

    @cached_property
    def lower_names(self) -> set[str]:
        return {name.lower() for name in self.names}

    @cached_property
    def classes(self) -> set[str]:
        return {node.name for _, node in self if isinstance(node, ast.ClassDef)}

    @cached_property
    def functions(self) -> dict[str, list[Function]]:
        """Functions and methods by their names."""
        return grouped((node.name, node) for _, node in self if isinstance(node, Function))

    @cached_property
    def looped(self) -> set[int]:
        """The ids of what stands in a loop, or in a function that is called in one."""
        found = {id(part) for _, node in self if isinstance(node, Loop) for part in ast.walk(node)}
        calls = {id(node): name_of(node.func) for _, node in self if isinstance(node, ast.Call)}
        waiting, seen = [calls[at] for at in found if at in calls], set[str]()
        while waiting:
            if (name := waiting.pop()) not in seen:
                seen.add(name)
                inside = {id(part) for function in self.functions.get(name, []) for part in ast.walk(function)}
                found |= inside
                waiting += [calls[at] for at in inside if at in calls]
        return found


def name_of(node: ast.AST | None) -> str:
    """Return the name of a variable, attribute or column, or of what a subscript takes; empty for all else."""
    if isinstance(node, ast.Subscript):
        return name_of(node.slice)
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) and node.value.isidentifier() else ""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def names_read(tree: ast.AST) -> Iterator[str]:
    """Yield all names that are read, of variables, attributes and columns, and those that are declared outside."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and not isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.Global | ast.Nonlocal):
            yield from node.names
        elif isinstance(node, ast.alias):
            yield node.name
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def within(scope: ast.AST) -> list[ast.AST]:
    """Return what belongs to a function or a module itself, and not to those inside."""
    found = [*ast.iter_child_nodes(scope)]
    for node in found:
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            found += ast.iter_child_nodes(node)
    return found


@cache
def words(name: str) -> tuple[str, ...]:
    """Return the words of a name, in lower case: those of `valLoss_2` are val, loss and 2."""
    return tuple(word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name))
