"""tunecheck.core rests on the standard library alone: it is what a trace is read and judged with, anywhere."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from tunecheck.core.paths import shipped_folder

CORE = shipped_folder() / "suite" / "tunecheck" / "core"
FILES = sorted(CORE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(CORE)) for path in FILES])
def test_core_imports_the_standard_library_alone(path: Path) -> None:
    """Not pydantic, not torch, anywhere in the file, and of the suite itself only core."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0
            modules.add(str(node.module))
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    outside = {name for name in modules if name.partition(".")[0] not in sys.stdlib_module_names}

    assert {name for name in outside if name != "tunecheck" and not name.startswith("tunecheck.core")} == set()
