"""The house stays in order:

imports point down, siblings do not know each other, tables are complete, collection is light.
"""

from __future__ import annotations

import ast
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tunecheck.config import TIERS
from tunecheck.config.trainers import TRAINERS
from tunecheck.core.check import Check
from tunecheck.core.evidence import RECORDS, Record
from tunecheck.core.paths import project_folder, shipped_folder
from tunecheck.fleet.request import Engine
from tunecheck.probes import PROBES, WATCHED
from tunecheck.strategies import STRATEGIES
from tunecheck.training import Trainer
from tunecheck.training.events import Probe

SUITE = shipped_folder() / "suite" / "tunecheck"
LAYERS = (
    ("cli", "plugin", "pytest_fixture", "api"),
    ("fleet",),
    ("session", "listen"),
    ("runner",),
    ("memory",),
    ("report",),
    ("probes", "history", "assets"),
    ("training", "hardware", "results"),
    ("config",),
    ("strategies", "checks"),
    ("models",),
    ("core",),
)
"""Packages of the suite from the top down: each imports only what stands below it."""
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
INDEPENDENT = {"checks": {"telemetry", "utilization"}, "probes": set(), "strategies": {"lora"}}
"""Folders whose files stand by themselves, and what they may share of their own folder besides base and reference."""


def imports(path: Path) -> set[str]:
    """Modules of the project that this file imports, anywhere in it; a module taken from its package is that module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            folder = SUITE.parent.joinpath(*node.module.split("."))
            for alias in node.names:
                inside = (folder / f"{alias.name}.py").exists() or (folder / alias.name).is_dir()
                found.add(f"{node.module}.{alias.name}" if inside else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.split(".")[0] in ("tunecheck", "benchmarks", "tests")}


def part(path: Path) -> str:
    """The package of the suite that this file belongs to."""
    return path.relative_to(SUITE).with_suffix("").parts[0]


def test_imports_point_down():
    """No package imports one that stands above or beside it, and none is missing in the plan."""
    wrong = {
        f"{path.relative_to(SUITE)} imports {name}"
        for path in SUITE.rglob("*.py")
        if path != SUITE / "__init__.py"
        for name in imports(path)
        if len(parts := name.split(".")) > 1 and parts[0] == "tunecheck" and parts[1] in LEVEL
        if parts[1] != part(path) and LEVEL[parts[1]] <= LEVEL[part(path)]
    }

    assert wrong == set()
    assert {part(path) for path in SUITE.rglob("*.py")} - {"__init__"} == set(LEVEL)


def test_the_layers_are_those_of_the_page():
    """In the order of docs/architecture.md, each with the same packages."""
    page = (project_folder() / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (.*?) \|", page, re.MULTILINE)

    assert [int(number) for number, _ in rows] == list(range(1, len(LAYERS) + 1))
    assert [set(re.findall(r"`(\w+)`", packages)) for _, packages in rows] == [set(names) for names in LAYERS]


def test_no_module_imports_itself_through_others():
    """A circle is one thing in several files."""
    files = {module_name(path): path for path in SUITE.rglob("*.py") if path != SUITE / "__init__.py"}
    graph = {name: (imports(path) & set(files)) - {name} for name, path in files.items()}

    assert list(circles(graph)) == []


def module_name(path: Path) -> str:
    """The dotted name of this file."""
    parts = path.relative_to(SUITE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def circles(graph):
    """Groups of modules of which each reaches every other, found by removing what nothing is reached from."""
    from graphlib import CycleError, TopologicalSorter

    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield error.args[1]


def test_the_suite_never_imports_what_measures_it():
    """Benchmarks and tests import the suite, never the reverse."""
    guilty = {
        str(path)
        for path in SUITE.rglob("*.py")
        if any(name.split(".")[0] in ("benchmarks", "tests") for name in imports(path))
    }

    assert guilty == set()


@pytest.mark.parametrize("folder", INDEPENDENT)
def test_siblings_do_not_import_each_other(folder):
    """Checks of a subject, a probe or a strategy can be read, tested and deleted alone."""
    shared = {f"tunecheck.{folder}.{name}" for name in (*INDEPENDENT[folder], "base", "reference", "mixed_precision")}
    guilty = {
        f"{path.stem}: {name}"
        for path in (SUITE / folder).glob("*.py")
        if path.stem not in ("__init__", "shapes")
        for name in imports(path)
        if name.startswith(f"tunecheck.{folder}.") and ".".join(name.split(".")[:3]) not in shared
    }

    assert guilty == set()


def test_only_the_plugin_and_the_command_import_pytest():
    """The library can be used without the test runner."""
    guilty = {path.relative_to(SUITE).as_posix() for path in SUITE.rglob("*.py") if "import pytest" in path.read_text()}

    assert guilty == {"plugin.py", "pytest_fixture.py", "cli/run.py"}


@pytest.mark.parametrize(
    "module",
    [
        "tunecheck.config",
        "tunecheck.checks",
        "tunecheck.results",
        "tunecheck.session",
        "tunecheck.cli",
        "tunecheck.runner",
        "tunecheck.memory",
        "tunecheck.listen.explain",
    ],
)
def test_the_parent_never_imports_torch(module):
    """Only the training child does: collection and judging stay light."""
    code = f"import sys, {module}; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "False"


def test_collection_is_quick_and_without_torch(tmp_path):
    """`pytest --collect-only` takes under a second on a quiet machine; torch is not imported.

    Measured against pytest collecting nothing, at the same moment: 1.1 s of CPU to 0.6 s beside others' work, a ratio
    of 1.9 that a loaded machine hardly changes.
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
        if ratios[-1] < 4:
            break

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
    assert {*PROBES, *WATCHED} == set(Probe.__subclasses__())


def test_every_strategy_is_used_by_its_file():
    """Each file of strategies/ is imported by the table, but for what they share."""
    files = {path.stem for path in (SUITE / "strategies").glob("*.py")}
    files -= {"__init__", "base", "mixed_precision"}

    assert files == {type(strategy).__module__.rpartition(".")[2] for strategy in STRATEGIES.values()}


def test_every_trainer_is_used_by_its_file():
    """Each file of training/ that has a loop is in the table, and the rest are its parts."""
    loops = {path.stem for path in (SUITE / "training").glob("*.py") if has_loop(path.read_text())}

    assert {f"tunecheck.training.{name}" for name in loops} == {trainer.module for trainer in TRAINERS.values()}


def has_loop(text: str) -> bool:
    """Whether this source defines a trainer's `train`, or has that of another as its own."""
    return "\ndef train(" in text or "import train as train" in text


def test_every_record_is_known_by_its_name():
    """The class found by name is the class that instances have."""
    module = sys.modules["tunecheck.core.evidence"]

    assert {name: getattr(module, name) for name in RECORDS} == RECORDS
    assert all(issubclass(kind, Record) for kind in RECORDS.values())


def test_tests_import_no_other_tests():
    """What several test files share lies in a module of tests/ itself, so that every file can be run by itself."""
    tests = project_folder() / "tests"
    helpers = {path.stem for path in tests.glob("*.py") if not path.stem.startswith("test_")}
    files = {path.stem for path in tests.rglob("*.py")} - helpers
    guilty = {
        f"{path.relative_to(tests)} imports {name}"
        for path in tests.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
        if name in files - {"pynvml"}
    }

    assert guilty == set()


def is_documented_elsewhere(path: Path, name: str) -> bool:
    """Hooks are documented by pytest, what a check, a probe, a trainer or an engine does at its base class."""
    bases = {"checks": [Check], "probes": [Probe], "training": [Probe, Trainer], "fleet": [Engine]}
    return name.startswith("pytest_") or any(hasattr(base, name) for base in bases.get(part(path), ()))


def test_a_public_function_says_what_it_does():
    """Those of one line say it themselves."""
    silent = {
        f"{path.relative_to(SUITE)}: {node.name}"
        for path in SUITE.rglob("*.py")
        for owner in ast.walk(ast.parse(path.read_text()))
        if isinstance(owner, ast.Module | ast.ClassDef) and not getattr(owner, "name", "").startswith("_")
        for node in owner.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and not ast.get_docstring(node)
        if len(node.body) > 1 and not is_documented_elsewhere(path, node.name)
    }

    assert silent == set()


def test_some_tests_of_each_kind_run_before_a_commit(request):
    """No test function is left out but those that are marked, and of few sets none is."""
    path, marks = Path("listen/test_loops.py"), {"slow": object()}
    sets = [SimpleNamespace(path=path, originalname="test", number=at, get_closest_marker={}.get) for at in range(9)]
    slow = SimpleNamespace(path=path, originalname="test_slowly", get_closest_marker=marks.get)
    alone = SimpleNamespace(path=path, originalname="test_alone", number="alone", get_closest_marker={}.get)
    (conftest,) = (each for each in request.config.pluginmanager.get_plugins() if hasattr(each, "some_of"))

    assert [item.number for item in conftest.some_of([*sets, slow, alone])] == [0, 2, 4, 6, "alone"]
