"""Lists that belong together and are shuffled or sorted one without the other: texts without their labels, say."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator

from tunecheck.listen.source.exchanged import SIDES, TRAINED
from tunecheck.listen.source.tree import Found, Loop, Trees, name_of, words

IN_PLACE = {"sort", "reverse"}
RETURNED = {"sorted", "shuffle", "permutation", "shuffled", "reversed"}
"""Methods that reorder a list, and functions that return it in another order."""
TOGETHER = {"zip", "train_test_split", "TensorDataset", "from_dict", "DataFrame", "list"}
"""What takes lists whose items belong together; so does a class of the script's own, or one named a data set."""


def reordered(trees: Trees) -> Iterator[Found]:
    """Yield lists that are reordered without those that they were made, and are used, together with."""
    for file, _, nodes in trees.scopes:
        orders = sorted(order for node in nodes for order in _orders(node))
        lists = [(line, name) for line, name in orders if "[" not in name]
        if lists:
            made, used = [*_made_together(nodes)], [*_used_together(nodes, trees.classes)]
            names = [name for _, name in lists]
            for line, name in lists:
                both = {one for at, pair in made if at <= line and name in pair for one in pair}
                both &= {one for at, pair in used if at >= line and name in pair for one in pair}
                others = [one for one in both if one not in names and not _stored_after(one, line, nodes)]
                if others and len(_roles([name, *others])) < 2:
                    yield "reordered", f"{name} without {sorted(others)[0]}", file, line
        columns = [(line, name) for line, name in orders if "[" in name]
        for line, name in columns if len(columns) == 1 else ():
            yield "reordered", f"{name} alone", file, line


def _roles(names: Iterable[str]) -> set[int]:
    return {SIDES[TRAINED][word] for name in names for word in words(name) if word in SIDES[TRAINED]}


def _orders(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield what a statement brings into another order, behind its line; a column as it is written."""
    if isinstance(node, ast.Expr) and isinstance(call := node.value, ast.Call) and isinstance(call.func, ast.Attribute):
        if call.func.attr == "shuffle" and len(call.args) == 1:
            yield from ((node.lineno, name) for name in [_variable(call.args[0])] if name)
        elif call.func.attr in IN_PLACE:
            yield from ((node.lineno, name) for name in [_variable(call.func.value)] if name)
    elif isinstance(node, ast.Assign):
        given, target = _reordered(node.value), node.targets[0]
        if given is not None and ast.unparse(given) == ast.unparse(target):
            if name := _variable(target):
                yield node.lineno, name
            elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
                yield node.lineno, ast.unparse(target)


def _reordered(value: ast.expr) -> ast.expr | None:
    """Return what a call reorders and returns."""
    if isinstance(value, ast.Attribute) and value.attr == "values":
        return _reordered(value.value)
    if not isinstance(value, ast.Call):
        return None
    if isinstance(value.func, ast.Attribute) and value.func.attr in ("tolist", "reset_index", "copy"):
        return _reordered(value.func.value)
    name = name_of(value.func)
    if name == "sample" and isinstance(value.func, ast.Attribute) and "frac" in {k.arg for k in value.keywords}:
        return value.func.value
    if name == "sample" and len(value.args) == 2 and name_of(getattr(value.args[1], "func", None)) == "len":
        return value.args[0]
    return value.args[0] if name in RETURNED and len(value.args) == 1 else None


def _variable(node: ast.expr) -> str:
    """Return the name of a variable or an attribute of self."""
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def _made_together(nodes: list[ast.AST]) -> Iterator[tuple[int, set[str]]]:
    """Yield lists that one statement or one loop makes, or that are parameters, with their line."""
    columns: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            yield node.lineno, {name for target in node.targets[0].elts if (name := _variable(target))}
        elif isinstance(node, ast.Assign) and (name := _variable(node.targets[0])):
            for part in ast.walk(node.value):
                if isinstance(part, ast.Subscript) and name_of(part):
                    columns[ast.unparse(part.value)].append((name, node.lineno))
        elif isinstance(node, Loop):
            calls = [part.func for part in ast.walk(node) if isinstance(part, ast.Call)]
            appended = [c.value for c in calls if isinstance(c, ast.Attribute) and c.attr == "append"]
            yield node.lineno, {name for value in appended if (name := _variable(value))}
        elif isinstance(node, ast.arguments):
            yield 0, {given.arg for given in node.args}
    for found in columns.values():
        yield min(line for _, line in found), {name for name, _ in found}


def _used_together(nodes: list[ast.AST], classes: set[str]) -> Iterator[tuple[int, set[str]]]:
    """Yield lists whose items one call or one dictionary takes side by side, with its line."""
    for node in nodes:
        if isinstance(node, ast.Call):
            name = name_of(node.func)
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            if name in TOGETHER | classes or "dataset" in name.lower():
                yield node.lineno, {held for value in given if (held := _variable(value))}
        elif isinstance(node, ast.Dict):
            yield node.lineno, {held for value in node.values if (held := _variable(value))}


def _stored_after(name: str, line: int, nodes: list[ast.AST]) -> bool:
    """Return whether this is written after that line, perhaps in the new order."""
    targets = (node for node in nodes if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store))
    return any(target.lineno >= line and ast.unparse(target) == name for target in targets)
