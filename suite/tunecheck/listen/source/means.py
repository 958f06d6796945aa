"""Means that a script reports: a sum and its count are of the same batches, and both of batches or both of rows."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from tunecheck.listen.source.exchanged import SIDES, TRAINED, sides_in
from tunecheck.listen.source.tree import Found, Loop, Trees, name_of, within, words

ROWS = {"dataset", "ds"}
APART = [{0}, {1}], [{1}, {0}]


class Mean(NamedTuple):
    """A sum that is divided by the length of something, or by a product of one."""

    sum_: ast.expr
    over: ast.expr
    line: int

    def __str__(self) -> str:
        return f"{ast.unparse(self.sum_)} over {ast.unparse(self.over)}"


def means_whole(trees: Trees) -> Iterator[Found]:
    """Yield means of more than what is counted, or of less, and of batches' means by a count of rows."""
    of_sums = any("sum" in (getattr(node, "value", ""), name_of(node)) for _, node in trees)
    for file, node in trees:
        for mean in _unending(within(node)) if isinstance(node, Loop) else ():
            yield "mean", f"{mean}: the sum goes on from pass to pass, the count does not", file, mean.line
    for file, _, nodes in trees.scopes:
        for mean, why in _uneven(nodes, of_sums):
            yield "mean", f"{mean}: {why}", file, mean.line
    for file, call in _unreset(trees):
        yield "mean", f"{ast.unparse(call)}: nothing resets what it counts", file, call.lineno


def _unending(loop: list[ast.AST]) -> Iterator[Mean]:
    """Yield means of sums that an inner loop adds to, and that this loop never begins again."""
    added = {_added(node) for inner in loop if isinstance(inner, Loop) for node in within(inner)}
    targets = {id(node.target) for node in loop if isinstance(node, ast.AugAssign)}
    stored = [n for n in loop if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and id(n) not in targets]
    added -= {name.id for name in stored}
    grown = {name_of(n.value) for n in loop if isinstance(n, ast.Attribute) and n.attr in ("append", "extend")}
    for mean in _means(loop):
        if getattr(mean.sum_, "id", None) in added and not grown & {*map(name_of, ast.walk(mean.over))}:
            yield mean


def _uneven(scope: list[ast.AST], of_sums: bool) -> Iterator[tuple[Mean, str]]:
    added = [(_added(node), ast.unparse(node.value)) for node in scope if isinstance(node, ast.AugAssign)]
    for mean in _means(scope):
        counted = {*words(ast.unparse(mean.over))}
        parts = [text for name, text in added if name == getattr(mean.sum_, "id", None)]
        if [sides_in(part, SIDES[TRAINED]) for part in (mean.sum_, mean.over)] in APART:
            yield mean, "the one is of the training, and the other is not"
        elif isinstance(mean.over, ast.BinOp) and "batch" in counted:
            yield mean, "the last batch may have fewer rows"
        elif parts and counted & ROWS and not of_sums and all("loss" in words(p) and "*" not in p for p in parts):
            yield mean, "the sum is of batches, and the count of rows"


def _unreset(trees: Trees) -> Iterator[tuple[str, ast.Call]]:
    """Yield results of meters, as those of torchmetrics, that go on counting from one evaluation to the next."""
    modules = {a.name: str(n.module) for _, n in trees if isinstance(n, ast.ImportFrom) for a in n.names}
    named = {name for name in modules if name[0].isupper() and {*words(name)} & {"metric", "meter"}}
    meters = {name for name, module in modules.items() if "torchmetrics" in module} | named
    calls = [(file, node) for file, node in trees if isinstance(node, ast.Call)]
    made = {id(node) for _, node in calls if name_of(node.func) in meters}
    reset = any(name_of(node.func) == "reset" and ast.unparse(node.func) != "self.reset" for _, node in calls)
    if made and not made & trees.looped and not reset:
        yield from ((f, node) for f, node in calls if name_of(node.func) == "compute" and id(node) in trees.looped)


def _added(node: ast.AST) -> str:
    """Return the variable that a statement adds to, or nothing."""
    target = node.target if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) else None
    return target.id if isinstance(target, ast.Name) else ""


def _means(nodes: list[ast.AST]) -> Iterator[Mean]:
    for node in nodes:
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div):
            left, right = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
            calls = [part for part in ast.walk(right) if isinstance(part, ast.Call)]
            product = isinstance(right, ast.BinOp) and isinstance(right.op, ast.Mult)
            if [name_of(call.func) for call in calls] == ["len"] and (right is calls[0] or product):
                yield Mean(left, right, node.lineno)
