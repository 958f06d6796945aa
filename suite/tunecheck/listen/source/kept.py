"""Which weights a loop keeps as its best: by the right comparison, and in a copy."""

import ast
import math
from collections.abc import Iterator

from tunecheck.listen.source.tree import Found, Loop, Trees, name_of, words

LESS = {"loss", "losses", "ppl", "perplexity", "error", "err", "wer", "cer", "mse", "mae", "rmse", "nll"}
MORE = {"acc", "accuracy", "f1", "bleu", "rouge", "auc", "recall", "precision", "ndcg", "mrr", "spearman", "pearson"}
"""Words of numbers that are better when they are smaller, and when they are larger."""
WORST = {"max", "worst", "highest", "hardest", "peak", "largest"}
SMALLER, LARGER = (ast.Lt, ast.LtE), (ast.Gt, ast.GtE)


def best_kept(trees: Trees) -> Iterator[Found]:
    """Yield comparisons that keep the worst weights or none, and best weights that go on training."""
    given = [node for _, node in trees if isinstance(node, ast.Assign) and "best" in words(name_of(node.targets[0]))]
    numbers = ((ast.unparse(node.targets[0]), _number(node.value)) for node in given)
    starts = {name: number for name, number in numbers if not math.isnan(number)}
    for file, node in trees:
        if isinstance(node, ast.If):
            for said in _compared(node, starts):
                yield "best", said, file, node.lineno
        if isinstance(node, Loop):
            for said, line in _uncopied(node, trees.nodes[file]):
                yield "best", said, file, line


def _compared(test: ast.If, starts: dict[str, float]) -> Iterator[str]:
    given = [node for node in test.body if isinstance(node, ast.Assign) and "best" in words(name_of(node.targets[0]))]
    kept = {ast.unparse(node.targets[0]): ast.unparse(node.value) for node in given}
    for part in ast.walk(test.test) if kept else ():
        if not isinstance(part, ast.Compare) or len(part.ops) > 1:
            continue
        left, right, operator = ast.unparse(part.left), ast.unparse(part.comparators[0]), part.ops[0]
        if kept.get(left) == right:  # best > new
            left, right = right, left
            smaller, larger = isinstance(operator, LARGER), isinstance(operator, SMALLER)
        else:
            smaller, larger = isinstance(operator, SMALLER), isinstance(operator, LARGER)
        if kept.get(right) != left or "-" in left or WORST & {*words(right)}:
            continue
        told, start = {*words(left), *words(right)}, starts.get(right, math.nan)
        less, more = bool(told & LESS), bool(told & MORE)
        if less != more and ((larger and less) or (smaller and more)):
            yield f"{right} keeps the {'largest' if larger else 'smallest'} {left}"
        elif (smaller and (start == -math.inf or (less and start <= 0))) or (larger and start == math.inf):
            yield f"{right} starts at {start:g}, and no {left} is {'smaller' if smaller else 'larger'}"


def _number(value: ast.expr) -> float:
    """Return a number as it is written, infinities included; NaN for all else."""
    text = ast.unparse(value).replace("'", "").replace('"', "")
    for name in ("float(inf)", "float(-inf)", "np.inf", "math.inf", "torch.inf", "numpy.inf"):
        text = text.replace(name, "-inf" if "-" in name else "inf")
    try:
        return float(text)
    except ValueError:
        return math.nan


def _uncopied(loop: ast.AST, nodes: list[ast.AST]) -> Iterator[tuple[str, int]]:
    """Yield the best weights of a loop that are no copies, and are used outside of where they are kept."""
    for test in (node for node in ast.walk(loop) if isinstance(node, ast.If)):
        for kept in (part for part in test.body if isinstance(part, ast.Assign)):
            name, value = name_of(kept.targets[0]), kept.value
            whole = isinstance(value, ast.Name) and {"model", "net"} & {*words(value.id)}
            state = isinstance(value, ast.Call) and name_of(value.func) == "state_dict"
            if not name or "best" not in words(name) or not (whole or state):
                continue
            here = {id(part) for part in ast.walk(test)}
            if any(name_of(part) == name and id(part) not in here and _loads(part) for part in nodes):
                yield f"{name} is no copy of {ast.unparse(value)}", kept.lineno


def _loads(node: ast.AST) -> bool:
    return isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
