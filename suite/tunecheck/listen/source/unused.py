"""What the script's own source computes and never uses."""

import ast
import re
import sys
from collections.abc import Iterator

from tunecheck.core.evidence import SlipKind
from tunecheck.listen.source.tree import Found, Function, Trees, name_of, names_read


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
    *("fillna", "dropna", "reset_index", "merge_and_unload", "no_grad", "inference_mode", "enable_grad", "autocast"),
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
Unused = Iterator[tuple[SlipKind, str, int]]


def unused(trees: Trees) -> Iterator[Found]:
    """Yield what the files compute, or are given, without using it."""
    owners = {id(part): kind for _, kind in trees if isinstance(kind, ast.ClassDef) for part in kind.body}
    for file, scope, nodes in trees.scopes:
        found: list[Unused] = []
        if isinstance(scope, ast.Module):
            found = [_assigned(nodes, trees.read)] if trees.whole else []
        elif not (read := {*names_read(scope)}) & {"locals", "exec", "eval"}:
            found = [_assigned(nodes, read), _parameters(scope, read, owners.get(id(scope)))]
        found += [_dropped(node) for node in nodes if isinstance(node, ast.Expr)]
        found += [_options(node, trees.read) for node in nodes if isinstance(node, ast.Call) and trees.whole]
        yield from ((kind, name, file, line) for rule in found for kind, name, line in rule)
    yield from _idle(trees)


def _idle(trees: Trees) -> Iterator[Found]:
    """Yield accelerate's accumulation over one micro-batch: the number is given where the Accelerator is made."""
    made = [(f, node) for f, node in trees if isinstance(node, ast.Call) and name_of(node.func) == "Accelerator"]
    told = trees.names & {"gradient_accumulation_plugin", "GradientAccumulationPlugin", "deepspeed_plugin"}
    if "accumulate" in trees.read and not told and len(made) == 1:
        ((file, call),) = made
        if not {keyword.arg for keyword in call.keywords} & {"gradient_accumulation_steps", None}:
            yield "idle", "accumulate() of an Accelerator without gradient_accumulation_steps", file, call.lineno


def _assigned(nodes: list[ast.AST], used: set[str]) -> Unused:
    for node in nodes:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.For) else []
        for target in targets:
            alone = isinstance(target, ast.Name)
            names = (n for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
            for name in names if not alone or isinstance(node, ast.Assign) else ():
                if name.id not in used and _tells(name.id, NAMED if alone else UNPACKED):
                    yield "variable", name.id, name.lineno


def _parameters(function: Function, used: set[str], owner: ast.ClassDef | None) -> Unused:
    bases = {ast.unparse(base).rpartition(".")[2] for base in owner.bases} if owner else set[str]()
    stub = all(isinstance(statement, ast.Pass | ast.Raise | ast.Expr) for statement in function.body)
    if function.decorator_list or stub or not bases <= BASES:
        return  # somebody else says what they are given
    for given in (*function.args.args, *function.args.kwonlyargs):
        if given.arg not in used and _tells(given.arg, NAMED):
            yield "parameter", given.arg, given.lineno


def _dropped(statement: ast.Expr) -> Unused:
    call = statement.value
    method = call.func if isinstance(call, ast.Call) else None
    if isinstance(method, ast.Attribute) and not IN_PLACE.search(ast.unparse(call)):
        of_data = method.attr in OF_DATA and DATA.search(ast.unparse(method.value))
        if of_data or (method.attr in RETURNS and not isinstance(method.value, ast.Call)):
            yield "result", f"{ast.unparse(method)}(...)", call.lineno
    elif isinstance(call, ast.Compare) or (isinstance(call, ast.Attribute) and call.attr in CALLED):
        yield "result", ast.unparse(call), call.lineno


def _options(call: ast.Call, read: set[str]) -> Unused:
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
