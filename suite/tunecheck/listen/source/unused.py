"""What the script's own source computes and never uses. Reads files alone, and runs nothing of them."""

import ast
import re
import sys
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from traceback import walk_stack
from types import FunctionType, ModuleType
from typing import Any

from tunecheck.core.evidence import SourceRead, UnusedKind, UnusedValue
from tunecheck.listen.user_code import is_users

MOST_FILES, MOST_BYTES = 24, 1 << 17
"""Modules of the script's own that are read, the nearest to the training, and the size of each."""


def _words(*words: str) -> re.Pattern[str]:
    """Return what finds one of these among the words of a name."""
    return re.compile(rf"(?i)(?<![a-z])({'|'.join(words)})(?![a-z])")


OF_ROWS = "masks?", "labels?", "targets?", "neg", "negatives?", "rejected", "chosen", "optimizer", "scheduler"
OF_LOSSES = "loss(es)?", "weights?", "logps", "log_?probs?", "rewards?", "advantages?", "kl", "penalty", "nois[ey]d?"
OF_NUMBERS = "lens?", "lengths?", "lr", "rate", "scale", "scaling", "ratio", "temperature", "dropout", "ref"
UNPACKED, NAMED = _words(*OF_ROWS), _words(*OF_ROWS, *OF_LOSSES, *OF_NUMBERS)
"""Names of what a training is made of: among several values that a call returns, and by themselves."""
OPTIONS = _words(*OF_LOSSES, *OF_NUMBERS, "decay", "warm_?up", "clip", "norm", "smoothing", "epochs", "accumulation")
COUNTED = _words("seq", "max", "min", "best", "batch", "total", "num", "n", "original", "avg", "prev", "last", "name")
"""Names of what scripts count, log or put aside, used or not."""
RETURNS = {
    *("masked_fill", "clamp", "detach", "view", "reshape", "squeeze", "unsqueeze", "transpose", "permute", "roll"),
    *("flip", "log_softmax", "softmax", "strip", "lower", "remove_columns", "rename_column", "train_test_split"),
    *("fillna", "dropna", "reset_index"),
}
OF_DATA, DATA = {"shuffle", "filter", "map", "select"}, re.compile(r"(?i)data|ds\b|set\b|train|val|test|split")
"""Methods of tensors, strings and tables that return what they make, and change nothing; and those of data sets, which
have such names."""
IN_PLACE = re.compile(r"(?i)random|rng|pool|executor|hook|handle|\b(self|np)\.\w+\(|inplace")
"""Of whose methods, or with which argument, that is not so."""
CALLED = {"step", "zero_grad", "backward", "train", "eval", "update"}
"""Methods that do nothing without their parentheses."""
BASES = {"object", "Module", "Dataset", "IterableDataset", "ABC"}
"""Bases of classes that do not say what their methods are given."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
Found = Iterator[tuple[UnusedKind, str, int]]
"""Kind of each unused value, its name and its line."""


def unused_values() -> Iterator[SourceRead]:
    """Yield what the script's own modules that train, and those that they import, compute without using it."""
    trees = dict[str, ast.Module]()
    for file in islice(_files(frame.f_globals for frame, _ in walk_stack(sys._getframe(1))), MOST_FILES):
        # it may be of another Python, or changed since; what a parser warns of is not the training's to say
        with suppress(OSError, SyntaxError, ValueError, RecursionError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            text = Path(file).read_bytes()
            trees[file] = ast.parse(text if len(text) <= MOST_BYTES else b"")
    if trees:
        yield SourceRead(files=len(trees), unused=tuple(_of_trees(trees)))


def _files(namespaces: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield the files of these modules of the script's, and of what they import."""
    seen, waiting = set[str](), deque(namespaces)
    while waiting:
        held = waiting.popleft()
        file = str(held.get("__file__") or "")
        if file in seen or not file.endswith(".py") or not is_users(file):
            continue
        seen.add(file)
        yield file
        for value in [*held.values()]:  # by their types: an attribute of an object, as a proxy, may run anything
            if issubclass(type(value), ModuleType | FunctionType | type):
                name = value.__name__ if issubclass(type(value), ModuleType) else value.__module__
                waiting.append(vars(sys.modules[name]) if name in sys.modules else {})


def _of_trees(trees: dict[str, ast.Module]) -> Iterator[UnusedValue]:
    read = {name for tree in trees.values() for name in _read(tree)}
    for file, tree in trees.items():
        held = {id(method): kind for kind in ast.walk(tree) if isinstance(kind, ast.ClassDef) for method in kind.body}
        for node in ast.walk(tree):
            for kind, name, line in _of_node(node, read, held.get(id(node))):
                yield UnusedValue(kind=kind, name=name, file=Path(file).name, line=line)


def _of_node(node: ast.AST, read: set[str], owner: ast.ClassDef | None) -> Found:
    if isinstance(node, Function) and not (used := {*_read(node)}) & {"locals", "exec", "eval"}:
        yield from _assigned(node, used)
        yield from _parameters(node, used, owner)
    elif isinstance(node, ast.Module):
        yield from _assigned(node, read)
    elif isinstance(node, ast.Expr):
        yield from _dropped(node)
    elif isinstance(node, ast.Call):
        yield from _options(node, read)


def _read(tree: ast.AST) -> Iterator[str]:
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


def _within(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what belongs to a function or a module itself, and not to those inside."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, Function | ast.Lambda | ast.ClassDef):
            yield from _within(child)


def _assigned(scope: ast.AST, used: set[str]) -> Found:
    for node in _within(scope):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.For) else []
        for target in targets:
            alone = isinstance(target, ast.Name)
            names = (n for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
            for name in names if not alone or isinstance(node, ast.Assign) else ():
                if name.id not in used and _tells(name.id, NAMED if alone else UNPACKED):
                    yield "variable", name.id, name.lineno


def _parameters(function: Function, used: set[str], owner: ast.ClassDef | None) -> Found:
    bases = {ast.unparse(base).rpartition(".")[2] for base in owner.bases} if owner else set[str]()
    stub = all(isinstance(statement, ast.Pass | ast.Raise | ast.Expr) for statement in function.body)
    if function.decorator_list or stub or not bases <= BASES:
        return  # somebody else says what they are given
    for given in (*function.args.args, *function.args.kwonlyargs):
        if given.arg not in used and _tells(given.arg, NAMED):
            yield "parameter", given.arg, given.lineno


def _dropped(statement: ast.Expr) -> Found:
    call = statement.value
    method = call.func if isinstance(call, ast.Call) else None
    if isinstance(method, ast.Attribute) and not IN_PLACE.search(ast.unparse(call)):
        of_data = method.attr in OF_DATA and DATA.search(ast.unparse(method.value))
        if of_data or (method.attr in RETURNS and not isinstance(method.value, ast.Call)):
            yield "result", f"{ast.unparse(method)}(...)", call.lineno
    elif isinstance(call, ast.Compare) or (isinstance(call, ast.Attribute) and call.attr in CALLED):
        yield "result", ast.unparse(call), call.lineno


def _options(call: ast.Call, read: set[str]) -> Found:
    """Yield an option that the command gives and that nothing reads; all are read where they are passed on whole."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "add_argument":
        return
    passed_on = read & {"vars", "__dict__", "_get_kwargs"}
    if passed_on or any(keyword.arg in ("dest", "action") for keyword in call.keywords):
        return
    for flag in (given.value for given in call.args if isinstance(given, ast.Constant)):
        name = str(flag).lstrip("-").replace("-", "_")
        told = any(given.partition("=")[0] == flag for given in sys.argv[1:])
        if told and str(flag).startswith("--") and name not in read and _tells(name, OPTIONS):
            yield "option", str(flag), call.lineno


def _tells(name: str, of: re.Pattern[str]) -> bool:
    return not name.startswith("_") and of.search(name) is not None and COUNTED.search(name) is None
