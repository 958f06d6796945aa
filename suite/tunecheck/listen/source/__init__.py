"""What the script's own source does by mistake, as far as its text alone tells. Reads files, and runs nothing of them.

One file per kind of mistake, and one entry of RULES: from the parsed files to what is found in each.
"""

import ast
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from traceback import walk_stack
from types import FunctionType, ModuleType
from typing import Any

from torch.nn.modules.batchnorm import _BatchNorm

from tunecheck.core.evidence import Slip, SourceRead
from tunecheck.listen.source.exchanged import exchanged
from tunecheck.listen.source.kept import best_kept
from tunecheck.listen.source.means import means_whole
from tunecheck.listen.source.modes import modes_switched
from tunecheck.listen.source.reordered import reordered
from tunecheck.listen.source.terms import loss_terms
from tunecheck.listen.source.tree import Found, Trees
from tunecheck.listen.source.unused import unused
from tunecheck.listen.user_code import is_users
from tunecheck.training.restore import dropouts

RULES: tuple[Callable[[Trees], Iterator[Found]], ...] = (
    *(unused, exchanged, reordered, best_kept, modes_switched, loss_terms, means_whole),
)
MOST_FILES, MOST_BYTES = 24, 1 << 18
"""Modules of the script's own that are read, the nearest to the training, and their size together: half a second."""


def read_source(model: Any) -> Iterator[SourceRead]:
    """Yield what the rules find in the script's own modules that train this model, and in those that they import."""
    trees, size = dict[str, ast.Module](), 0
    files = [*islice(_files(frame.f_globals for frame, _ in walk_stack(sys._getframe(1))), MOST_FILES)]
    for file in files:
        # it may be of another Python, or changed since; what a parser warns of is not the training's to say
        with suppress(OSError, SyntaxError, ValueError, RecursionError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            size += len(text := Path(file).read_bytes())
            if size <= MOST_BYTES:
                trees[file] = ast.parse(text)
    if trees:
        moded = any(True for _ in dropouts(model)) or any(isinstance(part, _BatchNorm) for part in model.modules())
        with suppress(RecursionError):  # of an expression of a thousand terms, say
            found = [*slips(trees, whole=len(trees) == len(files) < MOST_FILES)]
            yield SourceRead(files=len(trees), slips=tuple(slip for slip in found if slip.kind != "mode" or moded))


def slips(trees: Mapping[str, ast.Module], *, whole: bool = True) -> Iterator[Slip]:
    """Yield what the rules find in these files, each once; `whole` where the script has no others."""
    parsed = Trees(trees, whole)
    for kind, name, file, line in dict.fromkeys(found for rule in RULES for found in rule(parsed)):
        yield Slip(kind=kind, name=name, file=Path(file).name, line=line)


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
