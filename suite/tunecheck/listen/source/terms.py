"""Terms of a loss that teach nothing, or that compare what is not alike."""

import ast
from collections.abc import Iterator

from tunecheck.listen.source.exchanged import SIDES
from tunecheck.listen.source.tree import Found, Trees, name_of, words

LOSSES = {"loss", "kl", "penalty", "reg", "regularization", "aux", "term"}
TEMPERATURES = {"temperature", "temp", "tau", "t"}
SOFTMAX = {"softmax", "log_softmax"}


def loss_terms(trees: Trees) -> Iterator[Found]:
    """Yield numbers in a sum that is differentiated, and a temperature of the student alone."""
    for file, _, nodes in trees.scopes:
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        passes = [call for call in calls if name_of(call.func) == "backward" and isinstance(call.func, ast.Attribute)]
        learnt = {ast.unparse(held) for call in passes for held in (call.func.value, *call.args)}  # type: ignore[attr-defined]
        for node in nodes:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(node, ast.Assign | ast.AugAssign) and target and ast.unparse(target) in learnt:
                added = [node.value] if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) else []
                for term in (term for each in added or _addends(node.value) for term in _factors(each)):
                    if _is_number(term):
                        yield "term", f"adds {ast.unparse(term)}, which has no gradient", file, node.lineno
        softened = [_sides(call) for call in calls if name_of(call.func) in SOFTMAX and call.args]
        divided = {side for sides, warm in softened if warm for side in sides}
        if divided == {0} and any(sides == {1} and not warm for sides, warm in softened):
            line = next(call.lineno for call in calls if name_of(call.func) in SOFTMAX and _sides(call) == ({1}, False))
            yield "term", "softens the student by a temperature, and the teacher without", file, line


def _addends(value: ast.expr) -> list[ast.expr]:
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add | ast.Sub):
        return [*_parts(value.left), *_parts(value.right)]
    return []


def _parts(value: ast.expr) -> list[ast.expr]:
    return _addends(value) or [value]


def _factors(value: ast.expr) -> list[ast.expr]:
    """Return the factors of a product with one loss, or the value itself."""
    found = [value.left, value.right] if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult) else [value]
    return found if sum(bool(LOSSES & {*words(ast.unparse(factor))}) for factor in found) == 1 else []


def _is_number(value: ast.expr) -> bool:
    """Return whether this is a loss without its gradient."""
    called = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr
    return called in ("item", "detach") and bool(LOSSES & {*words(ast.unparse(value))})


def _sides(call: ast.Call) -> tuple[set[int], bool]:
    """Return whether the student (0) or the teacher (1) is softened, and whether by a temperature."""
    names = {word for node in ast.walk(call.args[0]) for word in words(name_of(node))}
    sides = {side for word, side in SIDES["student"].items() if word in names}
    return sides, bool(names & TEMPERATURES)
