"""Terms of a loss that teach nothing, or that compare what is not alike."""

import ast
from collections.abc import Iterator

from tunecheck.listen.source.exchanged import SIDES, sides_in
from tunecheck.listen.source.tree import Found, Trees, name_of, words

LOSSES = {"loss", "kl", "penalty", "reg", "regularization", "aux", "term"}
TEMPERATURES = {"temperature", "temp", "tau", "t"}
SOFTMAX = {"softmax", "log_softmax"}


def loss_terms(trees: Trees) -> Iterator[Found]:
    """Yield numbers in a sum that is differentiated, and a temperature of the student alone."""
    for file, _, nodes in trees.scopes:
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        passes = [call for call in calls if name_of(call.func) == "backward"]
        learnt = {ast.unparse(held) for call in passes for held in (getattr(call.func, "value", call), *call.args)}
        for node in nodes:
            if isinstance(node, ast.Assign | ast.AugAssign) and learnt & {*map(ast.unparse, _targets(node))}:
                sums = [node.value] if isinstance(node, ast.AugAssign) else _addends(node.value)
                for term in (term for each in sums for term in _factors(each) if _is_number(term)):
                    yield "term", f"adds {ast.unparse(term)}, which has no gradient", file, node.lineno
        softened = [
            (_sides(call.args[0]), call.lineno) for call in calls if name_of(call.func) in SOFTMAX and call.args
        ]
        divided = {side for (sides, warm), _ in softened if warm for side in sides}
        cold = [line for told, line in softened if told == ({1}, False)]
        if divided == {0} and cold:
            yield "term", "softens the student by a temperature, and the teacher without", file, cold[0]


def _targets(node: ast.Assign | ast.AugAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _addends(value: ast.expr) -> list[ast.expr]:
    """Return the terms of a sum; none of what is no sum."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add | ast.Sub):
        return [term for side in (value.left, value.right) for term in _addends(side) or [side]]
    return []


def _factors(value: ast.expr) -> list[ast.expr]:
    """Return the factors of a product with one loss, or the value itself."""
    found = [value.left, value.right] if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult) else [value]
    return found if sum(bool(LOSSES & {*words(ast.unparse(factor))}) for factor in found) == 1 else []


def _is_number(value: ast.expr) -> bool:
    """Return whether this is a loss without its gradient."""
    called = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr
    return called in ("item", "detach") and bool(LOSSES & {*words(ast.unparse(value))})


def _sides(value: ast.expr) -> tuple[set[int], bool]:
    """Return whether the student (0) or the teacher (1) is softened, and whether by a temperature."""
    names = {word for node in ast.walk(value) for word in words(name_of(node))}
    return sides_in(value, SIDES["student"]), bool(names & TEMPERATURES)
