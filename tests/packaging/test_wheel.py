"""The wheel, installed beside a training stack and used far from any checkout."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import sysconfig
import textwrap
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
import tiny

from tunecheck import __version__
from tunecheck.core.paths import checkout_folder

TRAINING_STACK = {"torch", "transformers", "peft", "trl", "accelerate", "bitsandbytes", "safetensors", "tokenizers"}
TINY_OPTIONS = [argument for setting in tiny.SETTINGS for argument in ("--set", setting)]
QUICK, LISTED = "quick/smollm2-135m-qlora", "  smollm2-135m-qlora: qlora, {} steps"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel with the installed build backend, without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "wheel"]
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder]
    subprocess.run([*command, *options, checkout_folder()], check=True, capture_output=True, text=True)
    (path,) = folder.glob("*.whl")
    return path


class Installed:
    """A virtual environment that holds this wheel and sees the installed stack, but not the checkout."""

    def __init__(self, wheel: Path, folder: Path) -> None:
        self.environment = folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.environment], check=True)
        self.packages = Path(sysconfig.get_path("purelib", vars={"base": self.environment, "platbase": ""}))
        # A .pth file in a folder that another .pth file names is not read: the editable install stays out of sight.
        (self.packages / "stack.pth").write_text(sysconfig.get_path("purelib") + "\n")
        target = ["--python", self.environment / "bin" / "python"]
        options = ["--no-deps", "--no-index", "--no-compile"]
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *target, "install", *options, wheel]
        subprocess.run(command, check=True, capture_output=True, text=True)

    def tunecheck(self, here: Path, *arguments: object, status: int | None = 0, **environment: str):
        """Call the command in this folder and return the ended process. Fail on another exit status; None takes any."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TUNECHECK_", "PYTHON"))}
        done = subprocess.run(
            [self.environment / "bin" / "tunecheck", *map(str, arguments)],
            cwd=here,
            env={**kept, "PYTHONDONTWRITEBYTECODE": "1", **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert status in (done.returncode, None), done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    def files(self) -> dict[str, int]:
        """Return the files of site-packages with the time of their last change."""
        return {str(path): path.stat().st_mtime_ns for path in self.packages.rglob("*")}


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Install the wheel once for the tests of this file."""
    return Installed(wheel, tmp_path_factory.mktemp("installed"))


def metadata(wheel: Path):
    """Return the metadata of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def required(wheel: Path, extra: str | None) -> set[str]:
    """Return the distributions that the wheel requires, for this extra or without any."""
    lines = [line.partition(";") for line in metadata(wheel).get_all("Requires-Dist")]
    marked = {"": None} | {f"extra == '{name}'": name for name in ("train", "trl", "fleet", "completion", "dev")}
    return {re.match(r"[\w.-]+", name)[0] for name, _, marker in lines if marked[marker.strip()] == extra}


def test_installing_touches_no_training_stack(wheel):
    """The parent's requirements leave torch and its company alone; the child's are an extra."""
    assert required(wheel, None).isdisjoint(TRAINING_STACK | {"huggingface-hub", "gguf", "numpy"})
    assert required(wheel, "train") >= {"torch", "transformers", "peft", "accelerate", "bitsandbytes", "safetensors"}
    assert metadata(wheel)["Version"] == __version__


def test_no_requirement_has_an_upper_bound(wheel):
    """A cap would replace, or refuse, what an environment holds already."""
    assert [
        line for line in metadata(wheel).get_all("Requires-Dist") if re.search(r"<|==|~=", line.split(";")[0])
    ] == []


def test_the_wheel_holds_the_shipped_files_and_nothing_else(wheel):
    """Every YAML, data and tier file of the checkout, the pages of checks, the type marker; no byte code, no tests."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    root = checkout_folder()
    shipped = {
        path.relative_to(root)
        for folder in ("configs", "tiers", "docs/checks")
        for path in (root / folder).rglob("*.*")
    }
    expected = {f"tunecheck/shipped/{path}" for path in shipped if "__pycache__" not in path.parts}

    assert {name for name in names if name.startswith("tunecheck/shipped/")} == expected
    assert {name.partition("/")[0] for name in names} == {"tunecheck"}
    assert not [name for name in names if name.endswith(".pyc")]
    assert {"tunecheck/py.typed"} <= names


@pytest.fixture
def here(tmp_path):
    """Make an empty folder, outside any checkout."""
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


@pytest.mark.slow
def test_everything_works_from_the_wheel_in_an_empty_folder(installed, here, tmp_path):
    """List, doctor, show, estimate, run, judge, page; reports lie below the folder, nothing in site-packages."""
    before = installed.files()
    tunecheck = functools.partial(installed.tunecheck, here, TUNECHECK_CACHE=str(tmp_path / "cache"))

    assert LISTED.format(10) in tunecheck("list").stdout
    assert "Why it matters" in tunecheck("explain", "loss_falls").stdout
    found = json.loads(tunecheck("doctor", "--json", status=None).stdout)  # 1 where this machine lacks something
    assert found["hardware"]["versions"]["torch"] == importlib.metadata.version("torch")
    assert "loss_oracle" in tunecheck("show", QUICK).stdout
    first = tunecheck("estimate", QUICK, "--json", *TINY_OPTIONS).stdout
    assert json.loads(first)["run"]
    assert tunecheck("estimate", QUICK, "--json", *TINY_OPTIONS).stdout == first
    assert list(here.iterdir()) == [], "run alone writes into the current folder"

    printed = tunecheck("run", "quick", *TINY_OPTIONS, "-k", QUICK.rpartition("/")[2]).stdout  # not one's own runs
    assert "verdict: PASS" in printed
    assert "Warning" not in printed
    assert [path.name for path in here.iterdir()] == ["reports"]
    (session,) = (path for path in (here / "reports" / "runs").iterdir() if path.is_dir())
    (trace,) = session.glob("*.jsonl")
    assert f"report: {session.relative_to(here)}" in printed
    assert "verdict: PASS" in tunecheck("judge", trace).stdout
    stricter = ["--set", "checks.adapters_applied.min_difference=1e9"]
    assert "verdict: FAIL" in tunecheck("judge", trace, *stricter, status=1).stdout
    (session / "report.html").unlink()
    tunecheck("page", session)
    assert (session / "report.html").is_file()
    assert installed.files() == before


NEIGHBOURS = ("suite", "tiers", "configs", "tests", "benchmarks", "scripts")
"""Folders of this repository, and packages of many others."""


@pytest.mark.slow
def test_another_repository_has_packages_of_the_same_names(installed, here):
    """Its pytest imports its own, with our plugin there and asked for or not; its training is listened to."""
    for name in NEIGHBOURS:
        (here / name).mkdir()
        (here / name / "__init__.py").write_text(f"OWN = {name!r}\n")
    (here / "conftest.py").write_text("import suite\n\nassert suite.OWN == 'suite'\n")
    imports = "".join(f"    import {name}\n    assert {name}.OWN == {name!r}\n" for name in NEIGHBOURS)
    (here / "tests" / "test_own.py").write_text(f"def test_imports():\n{imports}")
    training = """
        import suite, torch

        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(3):
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    (here / "train.py").write_text(textwrap.dedent(training))

    python = installed.environment / "bin" / "python"
    own = subprocess.run([python, "-m", "pytest", "-q"], cwd=here, capture_output=True, text=True, check=False)
    assert own.returncode == 0, own.stdout + own.stderr
    assert "1 passed" in own.stdout
    assert "verdict: PASS" in installed.tunecheck(here, "watch", "--", python, "train.py").stdout


def test_own_configs_go_before_the_shipped_ones(installed, here):
    """By default ./configs, elsewhere by option or variable; a run of one's own is found by its name and its path."""
    shipped = installed.packages / "tunecheck" / "shipped" / "configs" / f"{QUICK}.yaml"
    text = shipped.read_text().replace("max_steps: 10", "max_steps: 12")
    own = here / "configs"
    (own / "quick").mkdir(parents=True)
    (own / "quick" / "mine.yaml").write_text(text)
    (own / f"{QUICK}.yaml").write_text(text)

    listed = installed.tunecheck(here, "list", "--tier", "quick").stdout
    assert "  mine: qlora, 12 steps" in listed
    assert LISTED.format(12) in listed
    assert json.loads(installed.tunecheck(here, "show", "configs/quick/mine.yaml", "--json").stdout)
    elsewhere = own.rename(here / "elsewhere")
    assert LISTED.format(10) in installed.tunecheck(here, "list").stdout
    assert "  mine: qlora, 12 steps" in installed.tunecheck(here, "--configs", "elsewhere", "list").stdout
    assert "  mine: qlora, 12 steps" in installed.tunecheck(here, "list", TUNECHECK_CONFIGS=str(elsewhere)).stdout


def test_a_folder_without_runs_is_a_usage_error(installed, here):
    """An empty list is no success."""
    shipped = installed.packages / "tunecheck" / "shipped"
    hidden = shipped.rename(here / "hidden")
    try:
        assert "no run of quick and convergence" in installed.tunecheck(here, "list", status=4).stderr
    finally:
        hidden.rename(shipped)


def test_a_package_that_is_missing_is_named_with_what_installs_it():
    """As where the wheel was installed with --no-deps. No traceback, whatever the command."""
    code = "import sys; sys.modules['pydantic'] = None; from tunecheck.cli import main; sys.exit(main(['doctor']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 4
    assert f"pydantic is not installed in {sys.prefix}; run pip install pydantic" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_package_that_does_not_load_is_told(tmp_path):
    """As pydantic beside another pydantic-core. No traceback, and what it says itself."""
    (tmp_path / "pydantic.py").write_text("raise SystemError('pydantic-core 2.50.5 is incompatible')\n")
    code = "import sys; from tunecheck.cli import main; sys.exit(main(['doctor']))"
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": path}
    )

    assert done.returncode == 4
    assert "does not load; pip check says more: pydantic-core 2.50.5 is incompatible" in done.stderr
    assert "Traceback" not in done.stderr
