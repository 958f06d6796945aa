"""The house stays in order:

imports point down, siblings do not know each other, tables are complete, collection is light.
"""

from __future__ import annotations

import ast
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from suite.config import TIERS
from suite.core.evidence import RECORDS, Record
from suite.core.paths import project_folder
from suite.probes import PROBES
from suite.strategies import STRATEGIES
from suite.training import TRAINERS
from suite.training.events import Probe

SUITE = project_folder() / "suite"
LONGEST_FILE = 300


def imports(path: Path) -> set[str]:
    """Modules of the suite that this file imports, anywhere in it."""
    tree = ast.parse(path.read_text())
    found = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    found |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return {name for name in found if name.split(".")[0] == "suite"}


@pytest.mark.parametrize("folder", ["checks", "probes", "strategies"])
def test_siblings_do_not_import_each_other(folder):
    """A check, probe or strategy can be read, tested and deleted alone."""
    files = [path for path in (SUITE / folder).glob("*.py") if path.stem != "__init__"]
    guilty = {path.stem for path in files if any(name.startswith(f"suite.{folder}.") for name in imports(path))}

    assert guilty == set()


def test_the_suite_never_imports_pytest():
    """The library can be used without the test runner."""
    guilty = [path for path in SUITE.rglob("*.py") if "import pytest" in path.read_text()]

    assert guilty == []


@pytest.mark.parametrize(
    "module",
    ["suite.config", "suite.checks", "suite.results", "suite.session", "suite.cli", "suite.runner", "suite.memory"],
)
def test_the_parent_never_imports_torch(module):
    """Only the training child does: collection and judging stay light."""
    code = f"import sys, {module}; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "False"


def test_collection_is_quick_and_without_torch(tmp_path):
    """`pytest --collect-only` takes under a second on a quiet machine; torch is not imported.

    Measured against pytest collecting nothing, at the same moment: 0.95 s of CPU to 0.37 s, a ratio of 2.6 that a
    loaded machine does not change.
    """
    plugin = tmp_path / "spy.py"
    plugin.write_text("import sys\ndef pytest_collection_finish(session):\n    print('torch' in sys.modules)\n")
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    ratios = []
    for _ in range(3):
        bare = collect(tmp_path, "--rootdir", nothing, "-c", os.devnull, nothing)[1]
        output, seconds = collect(tmp_path, "-m", "quick", "tiers")
        assert "False" in output.splitlines(), output
        ratios.append(seconds / bare)

    assert min(ratios) < 4, ratios


def collect(tmp_path, *arguments) -> tuple[str, float]:
    """What pytest prints as it collects with these arguments, and its CPU seconds."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "spy", *map(str, arguments)]
    environment = {"PATH": "", "PYTHONPATH": str(tmp_path)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run(command, cwd=project_folder(), env=environment, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return result.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_tiers_have_their_marker_folder_and_file():
    """The three agree."""
    files = {path.stem.removeprefix("test_") for path in (project_folder() / "tiers").glob("test_*.py")}
    folders = {path.name for path in (project_folder() / "configs").iterdir() if path.name in TIERS}

    assert files == folders == set(TIERS)


def test_every_probe_is_in_the_table():
    """A probe that is not there gathers nothing."""
    assert set(PROBES) == set(Probe.__subclasses__())


def test_every_strategy_is_used_by_its_file():
    """Each file of strategies/ is imported by the table."""
    files = {path.stem for path in (SUITE / "strategies").glob("*.py")} - {"__init__"}

    assert files == {type(strategy).__module__.rpartition(".")[2] for strategy in STRATEGIES.values()}


def test_every_trainer_is_used_by_its_file():
    """Each file of trainer/ that has a loop is in the table, and the rest are its parts."""
    loops = {path.stem for path in (SUITE / "trainer").glob("*.py") if "\ndef train(" in path.read_text()}

    assert {f"suite.training.{name}" for name in loops} == set(TRAINERS.values())


def test_every_record_is_known_by_its_name():
    """The class found by name is the class that instances have."""
    module = sys.modules["suite.core.evidence"]

    assert {name: getattr(module, name) for name in RECORDS} == RECORDS
    assert all(issubclass(kind, Record) for kind in RECORDS.values())


def test_no_file_is_long():
    """Whatever has more than 300 lines is two things."""
    long = {
        str(p.relative_to(project_folder()))
        for p in SUITE.rglob("*.py")
        if len(p.read_text().splitlines()) > LONGEST_FILE
    }

    assert long == set()
