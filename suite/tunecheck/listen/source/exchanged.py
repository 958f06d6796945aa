"""Values of one role under the name of another: a rejected mask of the chosen answer, say, or validation's of training.

Two lines that differ in the roles of their names alone are compared. So are a plain copy and its new name, and the
arguments of the script's own functions.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple, TypeGuard

from tunecheck.listen.source.tree import Found, Function, Trees, name_of, words

CHOSEN, TRAINED, PREDICTED, OTHERS = "chosen", "train", "predicted", "1"
ROLES = {
    CHOSEN: ("chosen win winner preferred accepted", "rejected lose loser"),
    TRAINED: ("train training trn", "val valid validation dev eval test"),
    "student": ("student", "teacher"),
    "policy": ("policy actor", "ref reference"),
    "positive": ("positive pos", "negative neg"),
    "query": ("query question", "passage doc document answer"),
    "source": ("src source", "tgt trg target"),
    "encoder": ("encoder enc", "decoder dec"),
    "anchor": ("anchor", "positive pos"),
    "actor": ("actor", "critic"),
    "start": ("start", "end"),
    "premise": ("premise", "hypothesis"),
    "image": ("image img images", "text txt texts caption captions"),
    "user": ("user", "item"),
    "real": ("real", "fake"),
    PREDICTED: (
        "pred preds predictions logits outputs hyps",
        "label labels true gold targets refs references",
    ),
    OTHERS: ("1", "2"),
    "q": ("q", "k"),
    "k": ("k", "v"),
}
"""Pairs of roles: the words that tell the one and the other."""
SIDES = {
    family: {word: side for side, told in enumerate(both) for word in told.split()} for family, both in ROLES.items()
}
PASSED = CHOSEN, "student", "policy", "positive"
ALIASED = TRAINED, *PASSED
"""Roles whose plain copies are not given the other's name on purpose, as arguments and as variables: one function may
evaluate on the training's rows, too."""
HARMLESS = {
    *("batch", "size", "bs", "workers", "steps", "step", "len", "length", "num", "dir", "path", "config", "args"),
    *("name", "id", "key", "type", "task", "index", "time"),
}
"""Words of what two roles often share."""
METRICS = {
    *("precision_score", "recall_score", "f1_score", "fbeta_score", "precision_recall_fscore_support"),
    *("classification_report", "roc_auc_score", "confusion_matrix", "average_precision_score", "compute"),
}
"""Functions of scikit-learn and seqeval, whose labels come before the predictions, and a method by keyword."""
SHARED = HARMLESS | {"model"}
"""Words of names that are often given what another role has: a reference begins as the policy."""
SPLITS = {"split", "select", "take", "skip", "sample", "head", "iloc", "random", "subset", "slice", "islice", "filter"}
OF_DATA = {
    *("data", "dataset", "ds", "set", "texts", "text", "labels", "label", "x", "y", "df", "examples", "rows", "pairs"),
    *("encodings", "loader", "dataloader", "samples", "file", "ids", "tokens", "sentences", "features", "inputs"),
}
NEAR = 20
"""Lines between two that are compared."""


class Bound(NamedTuple):
    """A name, and the expression that it is given."""

    name: str
    value: ast.expr
    line: int
    copied: tuple[str, ...] = ALIASED
    """The roles of which it may be no plain copy."""


def exchanged(trees: Trees) -> Iterator[Found]:
    """Yield values under the name of another role."""
    for file, scope, nodes in trees.scopes:
        groups: dict[object, list[Bound]] = defaultdict(list)
        for node in nodes:
            for number, group in enumerate(_bound(node, trees)):
                groups[node if number or isinstance(node, ast.Call | ast.Dict) else scope] += group
        for group in groups.values():
            found = [*_siblings(group, trees), *_aliases(group, trees), *_overlapping(group)]
            told = {line: said for said, line in found}
            for line, said in told.items():
                yield "exchanged", said, file, line
        for said, line in [*_margins(nodes), *(_own_parameters(scope) if isinstance(scope, Function) else ())]:
            yield "exchanged", said, file, line


def _bound(node: ast.AST, trees: Trees) -> Iterator[list[Bound]]:
    """Yield the names that a statement, a call or a dictionary gives to values."""
    if isinstance(node, ast.Assign):
        targets, values = [node.targets[0]], [node.value]
        if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
            targets, values = node.targets[0].elts, node.value.elts
        yield [Bound(name_of(t), v, node.lineno) for t, v in zip(targets, values, strict=False) if name_of(t)]
    elif isinstance(node, ast.Dict):
        yield [Bound(name_of(k), v, v.lineno) for k, v in zip(node.keys, node.values, strict=True) if name_of(k)]
    elif isinstance(node, ast.Call):
        called = trees.functions.get(name_of(node.func), [])
        measures = name_of(node.func) in METRICS and not called
        copied = (PREDICTED,) if measures else PASSED if called else ALIASED
        yield [Bound(k.arg, k.value, k.value.lineno, copied) for k in node.keywords if k.arg]
        names = ["labels", "predictions"] if measures else []
        if not any(isinstance(given, ast.Starred) for given in node.args):
            names = names or [given.arg for function in called[:1] if len(called) == 1 for given in function.args.args]
            names = names[1:] if names[:1] in (["self"], ["cls"]) else names
            yield [Bound(name, v, v.lineno, copied) for name, v in zip(names, node.args, strict=False)]


def _siblings(group: list[Bound], trees: Trees) -> Iterator[tuple[str, int]]:
    """Yield what one of two names is given, where the other's value shows that it is another's."""
    for family, sides in SIDES.items():
        alike: dict[object, tuple[list[Bound], list[Bound]]] = defaultdict(lambda: ([], []))
        for bound in group:
            told = [word for word in words(bound.name) if word in sides]
            if len(told) == 1 and not SHARED & {*words(bound.name)}:
                alike[tuple("" if word in told else word for word in words(bound.name))][sides[told[0]]].append(bound)
        for pair in (pair for both in alike.values() for pair in zip(*both, strict=False)):
            if abs(pair[0].line - pair[1].line) <= NEAR and not (family == TRAINED and any(map(_picked, pair))):
                yield from _compared(family, *pair, trees)


def _picked(bound: Bound) -> bool:
    """Return whether the value is taken of another by numbers, as a fold is."""
    taken = (node.slice for node in ast.walk(bound.value) if isinstance(node, ast.Subscript))
    return not all(isinstance(place, ast.Constant) for place in taken)


def _compared(family: str, one: Bound, other: Bound, trees: Trees) -> Iterator[tuple[str, int]]:
    (shape, first), (same, second) = (_shape(bound.value, SIDES[family]) for bound in (one, other))
    met = [(a, b) for (a, _), (b, _) in zip(first, second, strict=False)]
    if shape != same or not met or ([*first] == [*second] and len({*met}) > 1):
        return
    crossed = {*met} == {(1, 0)} and family in ALIASED
    for (a, named), (b, its) in zip(first, second, strict=True):
        if crossed:
            yield f"{one.name} from {named} and {other.name} from {its}", other.line
        elif a == b:
            wrong, name = (other, its) if a == 0 else (one, named)
            served = name.endswith(".") and family == TRAINED and (0, 1) in met  # by what was fitted, or its collator
            served |= family == OTHERS and not name.rstrip(".").endswith(("1", "2"))  # a Conv2d is no second one
            if not served and not HARMLESS & {*words(name)} and _counterpart(name.rstrip("."), SIDES[family], trees):
                yield f"{wrong.name} from {name.rstrip('.')}", wrong.line


def _shape(value: ast.expr, sides: dict[str, int]) -> tuple[list[str], list[tuple[int, str]]]:
    """Return an expression without the words of roles, and these words' sides with the names that hold them.

    A dot stands behind the name of what an attribute is taken of.
    """
    shape, found, nodes = [], [], [*ast.walk(value)]
    modes = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    owners = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    sizes = [node for node in nodes if name_of(node) == "shape" or name_of(getattr(node, "func", node)) == "len"]
    sized = {id(part) for node in sizes for part in ast.walk(node)}
    for node in nodes:
        shape.append(type(node).__name__)
        name = "" if isinstance(node, ast.Subscript) or id(node) in sized else name_of(node)
        name = "" if name in ("train", "eval", "test") and id(node) in modes else name
        for word in words(name):
            shape.append("" if word in sides else word)
            if word in sides:
                found.append((sides[word], f"{name}." if id(node) in owners else name))
        if not name and isinstance(node, ast.Constant | ast.keyword):
            shape.append(str(node.value if isinstance(node, ast.Constant) else node.arg))
    return shape, found


def _counterpart(name: str, sides: dict[str, int], trees: Trees) -> bool:
    """Return whether a name of the other role is in the script, so that this one is no common thing."""
    told = next(word for word in words(name) if word in sides)
    others = (other for other, side in sides.items() if side != sides[told])
    return any(name.lower().replace(told, other) in trees.lower_names for other in others)


def _aliases(group: list[Bound], trees: Trees) -> Iterator[tuple[str, int]]:
    """Yield plain copies under the other role's name, and data of a validation that are made of training's alone."""
    for name, value, line, copied in group:
        for family in copied:
            sides = SIDES[family]
            own = {sides[word] for word in words(name) if word in sides}
            held = name_of(_plain(value))
            theirs = {sides[word] for word in words(held) if word in sides}
            if len(own) == 1 and theirs == {1 - own.pop()} and not HARMLESS & {*words(held)} | SHARED & {*words(name)}:
                yield f"{name} from {held}", line
        if isinstance(value, ast.Call) and copied == ALIASED:
            yield from _of_training(name, value, line, trees)


def _plain(value: ast.expr) -> ast.expr:
    """Return what is only moved, or got of a dictionary."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if value.func.attr == "get" and value.args:
            return value.args[0]
        if value.func.attr not in ("to", "cuda", "cpu", "float", "long", "squeeze"):
            break
        value = value.func.value
    return value


def _of_training(name: str, call: ast.Call, line: int, trees: Trees) -> Iterator[tuple[str, int]]:
    sides = SIDES[TRAINED]
    if {sides[word] for word in words(name) if word in sides} != {1}:
        return
    if SPLITS & {*words(written := ast.unparse(call))} or "[" in written:
        return
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    names = [held for value in given if (held := name_of(value)) and {*words(held)} & OF_DATA]
    told = [held for held in names if {*words(held)} & sides.keys()]
    if {sides[word] for held in told for word in words(held) if word in sides} == {0} and all(
        _counterpart(held, sides, trees) for held in told
    ):
        yield f"{name} from {', '.join(names)}", line


def _overlapping(group: list[Bound]) -> Iterator[tuple[str, int]]:
    """Yield the end of a list for the validation, which begins before the end of the training's part."""
    taken = [(bound, bound.value) for bound in group if isinstance(bound.value, ast.Subscript)]
    cuts = [
        (bound, ast.unparse(value.value), value.slice) for bound, value in taken if isinstance(value.slice, ast.Slice)
    ]
    sides = [{SIDES[TRAINED][word] for word in words(bound.name) if word in SIDES[TRAINED]} for bound, *_ in cuts]
    for (bound, rows, held), side in zip(cuts, sides, strict=True):
        for (other, whole, part), its in zip(cuts, sides, strict=True):
            if side == {1} and its == {0} and rows == whole and held.upper is None and part.lower is None:
                begins, ends = _place(held.lower), _place(part.upper)
                if begins and ends and begins[1] == ends[1] and begins[0] < ends[0]:
                    yield f"{bound.name} from {ast.unparse(bound.value)}, of which {other.name} has a part", bound.line


def _place(value: ast.expr | None) -> tuple[float, str] | None:
    """Return a number, and of what it is the share, of `100`, `int(0.8 * n)` or `int(n * 0.8)`; None of all else."""
    text = "" if value is None else ast.unparse(value)
    parts = re.fullmatch(r"(?:int\()?([\d.]+)(?: \* ([\w.()]+?))?\)?|int\(([\w.()]+) \* ([\d.]+)\)", text)
    return None if parts is None else (float(parts[1] or parts[4]), parts[2] or parts[3] or "")


def _margins(nodes: list[ast.AST]) -> Iterator[tuple[str, int]]:
    """Yield two differences of the same roles in opposite orders, one of which is compared with the other."""
    assigned = [node for node in nodes if isinstance(node, ast.Assign)]
    given = {ast.unparse(node.targets[0]): node.value for node in assigned if isinstance(node.value, ast.BinOp)}
    for node in (node for node in nodes if isinstance(node, ast.Call) or _is_difference(node)):
        both = node.args[:2] if isinstance(node, ast.Call) else [node.left, node.right]
        met = [value for part in both if _is_difference(value := given.get(ast.unparse(part), part))]
        for family in PASSED if len(met) == 2 else ():
            orders = [[sides_in(part, SIDES[family]) for part in (value.left, value.right)] for value in met]
            if orders in ([[{0}, {1}], [{1}, {0}]], [[{1}, {0}], [{0}, {1}]]):
                yield " beside ".join(map(ast.unparse, met)), node.lineno


def _is_difference(node: ast.AST) -> TypeGuard[ast.BinOp]:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)


def sides_in(value: ast.expr, sides: dict[str, int]) -> set[int]:
    """Return which of two roles the names in an expression tell."""
    return {sides[word] for node in ast.walk(value) for word in words(name_of(node)) if word in sides}


def _own_parameters(function: Function) -> Iterator[tuple[str, int]]:
    """Yield an attribute that is given another parameter than the unread one of its name."""
    given = {given.arg for given in function.args.args}
    read = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    handed = (n for n in ast.walk(function) if isinstance(n, ast.Assign) and isinstance(n.value, ast.Name))
    for node in handed:
        name, target = name_of(node.value), node.targets[0]
        if name in given and isinstance(target, ast.Attribute) and target.attr in given - read:
            yield f"{target.attr} from {name}", node.lineno
