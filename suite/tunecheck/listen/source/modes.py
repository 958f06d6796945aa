"""Whether a loop of the script's own goes into eval mode to evaluate, and back into train mode to train."""

import ast
from collections.abc import Iterator

from tunecheck.listen.source.tree import Found, Function, Trees, name_of, words

NO_GRADIENTS = {"no_grad", "inference_mode"}
FROZEN = {"teacher", "ref", "reference", "target", "trainer"}
"""Words of models that stay in one mode, and of what is no model."""


def modes_switched(trees: Trees) -> Iterator[Found]:
    """Yield where a training's evaluation leaves out eval mode, and a training that goes on in it."""
    calls = [(file, node) for file, node in trees if isinstance(node, ast.Call)]
    modes = [(file, node) for file, node in calls if _is_mode(node)]
    if not any(name_of(node.func) == "backward" for _, node in calls) or not modes:
        return
    if not any(name_of(node.func) == "eval" or node.args or node.keywords for _, node in modes):
        models = {ast.unparse(node.func.value) for _, node in modes if isinstance(node.func, ast.Attribute)}
        for file, name, line in _without_gradients(trees, models):
            yield "mode", f"{name} is evaluated in train mode: eval() is never called", file, line
            return
    looped = trees.looped
    into_eval = [(file, node) for file, node in modes if name_of(node.func) == "eval" and id(node) in looped]
    back = [node for _, node in modes if name_of(node.func) == "train" and id(node) in looped]
    trained = any(id(node) in looped for _, node in calls if name_of(node.func) == "backward")
    if into_eval and trained and not back:
        file, node = into_eval[0]
        yield "mode", f"{ast.unparse(node)} stands in the loop, and train() does not", file, node.lineno


def _is_mode(call: ast.Call) -> bool:
    held = call.func
    named = isinstance(held, ast.Attribute) and held.attr in ("train", "eval")
    return named and not FROZEN & {*words(ast.unparse(held).rpartition(".")[0])}


def _without_gradients(trees: Trees, models: set[str]) -> Iterator[tuple[str, str, int]]:
    """Yield calls of these models where no gradients are recorded."""
    for file, node in trees:
        marks = node.decorator_list if isinstance(node, Function) else []
        marks = [item.context_expr for item in node.items] if isinstance(node, ast.With) else marks
        if any(name_of(getattr(mark, "func", mark)) in NO_GRADIENTS for mark in marks):
            for part in ast.walk(node):
                if isinstance(part, ast.Call) and ast.unparse(part.func) in models:
                    yield file, ast.unparse(part.func), part.lineno
