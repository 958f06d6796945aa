"""CONTRIBUTING's table "Adding to it", carried out: each recipe in a copy of the repository, which passes its tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tunecheck.core.paths import checkout_folder

ROOT = checkout_folder()
PARTS = (
    "suite",
    "tests",
    "tiers",
    "configs",
    "scripts",
    "benchmarks",
    "docs",
    "reports",
    "conftest.py",
    "pyproject.toml",
)
LEFT_OUT = shutil.ignore_patterns("*.tar.xz", "*.png", "runs", ".*_cache")
ELSEWHERE = {
    "a run": "tests/config/test_own_files.py",
    "a comparison": "tests/config/test_own_files.py",
    "a model": "tests/config/test_own_files.py",
    "a data set": "tests/config/test_own_files.py",
    "a data set of the hub": "tests/assets/test_rows_hub.py",
    "a card class": "tests/config/test_own_files.py",
    "a listener": "tests/listen/test_skeleton_listener.py",
    "an engine of a fleet": "tests/fleet/test_engines.py",
}
"""Recipes that other tests carry out."""
CONFIG, STRUCTURE = "tests/config/test_config.py", "tests/test_structure.py"
TRAINED = """
import pathlib, sys
sys.path[:0] = ["tests", "."]
import tiny
from in_process import train_here
from tunecheck.config import find_run, load_run
settings = [*tiny.SETTINGS, "training.max_steps=2", "evaluation.at=[]", *sys.argv[2:]]
trace = train_here(load_run(find_run("quick/smollm2-135m-qlora"), settings), pathlib.Path(sys.argv[1]))
print(trace.main.end.outcome, *sorted({type(record).__name__ for record in trace.main.records}))
"""
CHECK = '''

class RatesBelowOne(Check):
    """No step has a learning rate above 1."""

    meaning = "The rate is in percent."
    remedy = "Give it as a fraction."

    max_rate: float = 1.0
    """Healthy runs have 2e-3 at most."""

    def judge(self, trace: Trace) -> Finding:
        rate = worst_of([step.learning_rate for step in trace.steps], key=float)
        return self.found(rate <= self.max_rate, f"the highest is {rate:.3g}", measured=rate, limit=self.max_rate)
'''
PROBE = '''"""The micro-batches of each step."""

from collections.abc import Sequence

from tunecheck.core.evidence import WindowSize
from tunecheck.training.data import Batch
from tunecheck.training.events import Probe
from tunecheck.training.session import Session


class WindowSizeProbe(Probe[WindowSize]):
    """Count them."""

    def step_begin(self, session: Session, step: int, window: Sequence[Batch]) -> None:
        """Record the size of this window."""
        self.emit(WindowSize(step=step, micro_batches=len(window)))
'''
RECORD = '''

class WindowSize(Record):
    """The micro-batches of a step."""

    step: int
    micro_batches: int
'''
STRATEGY = """

FIRST_LAYER = BaseWeights(
    trains="first layer",
    parts=lambda model: decoder_layers(model, at_least=1)[:1],
    names=lambda names, tied: [name for name in names if layer_of(name) == 0],
)
"""
TIER = '''"""A minute at night."""

import pytest

from tunecheck.plugin import require_passed

pytestmark = pytest.mark.nightly


def test_the_night_is_quiet(finding):
    require_passed(finding)
'''


class Copy:
    """A copy of the repository that recipes change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for part in PARTS:
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, folder / part, ignore=LEFT_OUT)
            else:
                shutil.copy(ROOT / part, folder / part)

    def add(self, path: str, text: str) -> None:
        """Append to this file, or make it."""
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        with (self.folder / path).open("a", encoding="utf-8") as file:
            file.write(text)

    def insert(self, path: str, before: str, text: str) -> None:
        """Put the text before the first place that holds these words."""
        file = self.folder / path
        start, found, end = file.read_text(encoding="utf-8").partition(before)
        assert found, f"{path} lacks {before!r}"
        file.write_text(f"{start}{text}{found}{end}", encoding="utf-8")

    def python(self, *arguments: str) -> str:
        """Return what Python prints with these arguments, in the copy."""
        environment = {**os.environ, "PYTHONPATH": str(self.folder / "suite"), "COLUMNS": "200"}
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{arguments}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def generate(self) -> None:
        """Write what is generated, as the recipes say."""
        schema = self.python("-m", "tunecheck.config")
        (self.folder / "configs" / "run.schema.json").write_text(schema, encoding="utf-8")

    def test(self, files: list[str], words: str) -> None:
        """Run the tests of these files whose names match, of which there must be some."""
        out = self.python("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *files, "-k", words)
        assert " passed" in out

    def trained(self, *settings: str) -> list[str]:
        """Return the outcome of two steps in the copy, and the kinds of records of its trace."""
        return self.python("-c", TRAINED, str(self.folder / "trained"), *settings).split()


def a_check(copy: Copy) -> None:
    """Its class, its line, its rows in the tests' tables, its page."""
    copy.add("suite/tunecheck/checks/optimizer.py", CHECK)
    copy.insert(
        "suite/tunecheck/checks/__init__.py",
        "base: quantization_as_configured",
        "what learns: rates_below_one\n",
    )
    test, after = "tests/checks/test_checks.py", '    "optimizer_coverage": {'
    copy.insert(
        test, after, '    "rates_below_one": {("in percent", "highest is 2"): having(e.Step, 2, learning_rate=2.0)},\n'
    )
    copy.insert(test, '    "optimizer_coverage": ("Census', '    "rates_below_one": ("Step", "Step.learning_rate"),\n')
    copy.generate()
    copy.python("scripts/checks-page.py")
    copy.python("-m", "benchmarks.detection", "report")
    copy.test([test, "tests/scripts/test_checks_page.py", CONFIG], "rates_below_one or page or schema_on_disk")


def a_probe(copy: Copy) -> None:
    """Its file, its record, its line; the record in the tests' traces."""
    copy.add("suite/tunecheck/probes/window_size.py", PROBE)
    copy.add("suite/tunecheck/core/evidence/training.py", RECORD)
    table = "suite/tunecheck/probes/__init__.py"
    copy.insert(table, "from tunecheck.training.events", "from tunecheck.probes.window_size import WindowSizeProbe\n")
    copy.insert(table, "    ShownRowsProbe,\n    Adapter", "    WindowSizeProbe,\n")
    copy.insert(
        "tests/traces.py",
        "        records.append(e.TrainingState(",
        "        records.append(e.WindowSize(step=number, micro_batches=2))\n",
    )
    copy.insert("tests/core/test_trace.py", "    e.StepInputs(", "    e.WindowSize(step=1, micro_batches=2),\n")
    copy.test([STRUCTURE, "tests/core/test_trace.py"], "every_probe or every_record or imports_point or WindowSize")
    assert {"finished", "WindowSize"} <= set(copy.trained())


def a_trainer(copy: Copy) -> None:
    """The skeleton's copy, and its line."""
    shutil.copy(copy.folder / "docs" / "skeleton_trainer.py", copy.folder / "suite/tunecheck/training/mine.py")
    line = '    "mine": TrainerInfo(module="tunecheck.training.mine", optimizer="AdamW", refuses=plain_loop_refuses),\n'
    copy.insert("suite/tunecheck/config/trainers.py", '    "transformers": TrainerInfo(', line)
    copy.generate()
    copy.test([STRUCTURE, CONFIG], "every_trainer or imports_point or schema_on_disk")
    assert copy.trained("trainer=mine")[0] == "finished"


def a_strategy(copy: Copy) -> None:
    """Its two choices and its line."""
    copy.add("suite/tunecheck/strategies/base_weights.py", STRATEGY)
    table = "suite/tunecheck/strategies/__init__.py"
    copy.insert(table, '    "lora": LoraAdapters(', '    "first_layer": base_weights.FIRST_LAYER,\n')
    copy.generate()
    of_strategies = ["tests/strategies/test_strategies.py", "tests/checks/test_utilization.py"]
    copy.test(
        [*of_strategies, CONFIG, STRUCTURE], "(first_layer and not 12) or every_strategy or schema_on_disk or qlorra"
    )


def a_tier(copy: Copy) -> None:
    """Its lines, its folder, its file."""
    copy.insert("suite/tunecheck/config/comparisons.py", '    "full": "LLaMA', '    "nightly": "a minute at night",\n')
    copy.insert("suite/tunecheck/config/schema.py", '"full"]\n', '"nightly", ')
    copy.add("tiers/test_nightly.py", TIER)
    (copy.folder / "configs" / "nightly").mkdir()
    shutil.copy(copy.folder / "configs/quick/smollm2-135m-qlora.yaml", copy.folder / "configs/nightly/mine.yaml")
    copy.generate()
    copy.test([STRUCTURE, CONFIG], "tiers_have or schema_on_disk or needs_a_tier")
    assert "test_the_night_is_quiet[mine-finite]" in copy.python(
        "-m", "pytest", "--collect-only", "-q", "-m", "nightly"
    )


RECIPES: dict[str, Callable[[Copy], None]] = {
    "a check": a_check,
    "a probe": a_probe,
    "a trainer": a_trainer,
    "a strategy": a_strategy,
    "a tier": a_tier,
}


def test_every_recipe_is_carried_out():
    """By a test that exists."""
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Adding to it")[2].partition("\n\n|")[2]
    rows = re.findall(r"^\| (an? [^|]+?) \|", "|" + table.partition("\n\n")[0], re.MULTILINE)

    assert sorted(rows) == sorted([*RECIPES, *ELSEWHERE])
    assert all((ROOT / test).is_file() for test in ELSEWHERE.values())


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.slow
def test_a_recipe_works(recipe, tmp_path):
    """The copy passes the tests about what was added."""
    RECIPES[recipe](Copy(tmp_path / "copy"))
