"""`tunecheck run`: which tests pytest is given, and real sessions in a folder outside of the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import shared_fork_server
import tiny

from tunecheck.cli import main
from tunecheck.core.paths import project_folder, shipped_folder
from tunecheck.results.stored import VERDICTS

RUN = "quick/smollm2-135m-qlora"
TIERS = str(shipped_folder() / "tiers")
QUICK = str(shipped_folder() / "tiers" / "test_quick.py")
SETTINGS = [argument for setting in tiny.SETTINGS for argument in ("--set", setting)]


@pytest.fixture
def given(monkeypatch):
    """Return a function that runs the command and returns pytest's arguments, without the configuration's."""

    def arguments(*words):
        calls = []
        monkeypatch.setattr("tunecheck.cli.run.head_start", lambda arguments: None)
        monkeypatch.setattr("pytest.main", lambda parts, **_: calls.append(parts) or 0)
        assert main(["run", *words]) == 0
        (parts,) = calls
        at = parts.index("-p")
        assert parts[at : at + 2] == ["-p", "tunecheck.plugin"]
        return [*parts[:at], *parts[at + 2 :]]

    return arguments


def test_a_cache_in_a_home_that_nobody_knows_is_a_wrong_request(tmp_path):
    """It is looked at after the session's folder was made, and before anything trains."""
    environment = {**os.environ, "TUNECHECK_CACHE": "~nobody-of-that-name/x", "TUNECHECK_REPORTS": str(tmp_path)}
    command = [sys.executable, "-m", "tunecheck.cli", "run", "quick", *SETTINGS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)

    assert done.returncode == 4, done.stdout + done.stderr
    assert "~nobody-of-that-name/x: there is no such home directory" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["quick"], [TIERS, "-m", "quick", "-q"]),
        (["quick", "memory"], [TIERS, "-m", "quick or memory", "-q"]),
        ([RUN], [QUICK, "--run", RUN, "-q"]),
        ([RUN, RUN], [QUICK, "--run", RUN, "-q"]),
        (["llama-7b-qlora"], [str(Path(TIERS) / "test_full.py"), "--run", "llama-7b-qlora", "-q"]),
        (["quick", "-v"], [TIERS, "-m", "quick", "-v"]),
        (["quick", "-k", "finite", "-n", "auto"], [TIERS, "-m", "quick", "-k", "finite", "-n", "auto", "-q"]),
        (["quick", "--set", "a=1", "--set", "b=2"], [TIERS, "-m", "quick", "--set", "a=1", "--set", "b=2", "-q"]),
        (
            ["quick", "--card", "8gb", "--require-gpu", "--vram-cap", "8GiB", "--fail-on-regression", "--in-process"],
            [
                *(TIERS, "-m", "quick", "--card", "8gb", "--require-gpu", "--vram-cap", "8GiB"),
                *("--fail-on-regression", "--in-process", "-q"),
            ],
        ),
    ],
)
def test_pytest_is_given_what_was_requested(given, words, expected):
    """Tiers by marker from all files, since a run may be in two; single runs from the file of their tier."""
    assert given(*words) == expected


@pytest.mark.parametrize("folder", ["quick", "anywhere"])
def test_a_run_is_named_by_its_path(given, tmp_path, folder):
    """Wherever the file lies."""
    path = tmp_path / folder / "mine.yaml"
    path.parent.mkdir()
    tier = "" if folder == "quick" else "tier: quick\n"
    path.write_text(tier + (project_folder() / "configs" / f"{RUN}.yaml").read_text())

    assert given(str(path)) == [QUICK, "--run", str(path), "-q"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["quick/smollm2-135m-qlor"], "did you mean 'quick/smollm2-135m-qlora'?"),
        (["nowhere/run.yaml"], "there is no file 'nowhere/run.yaml'"),
        (["smollm2-135m-qlora"], f"is in several tiers: name {RUN} or convergence/smollm2-135m-qlora"),
        (["quick", RUN], f"quick {RUN}: use either tiers or runs in one session, not both"),
    ],
)
def test_what_cannot_be_run_is_a_usage_error(capsys, words, message):
    """Before pytest begins."""
    assert main(["run", *words]) == 4
    assert message in capsys.readouterr().err


def test_nothing_to_run_is_a_usage_error(capsys):
    """Without a tier or a run there is no session."""
    with pytest.raises(SystemExit) as ended:
        main(["run"])

    assert ended.value.code == 4
    assert "TIER|RUN" in capsys.readouterr().err


def outside(
    folder, *words, program="import sys; from tunecheck.cli import main; sys.exit(main(sys.argv[1:]))", shared=False
):
    """The finished command, called in this folder, which is no checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "TUNECHECK_REPORTS"}
    environment |= {"PYTHONPATH": str(project_folder()), "NO_COLOR": "1"}
    if shared:
        environment |= shared_fork_server.variables()
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_folder_of_ones_own_has_its_configs_and_its_reports(tmp_path):
    """A file below ./configs hides the shipped one of its name; the session lies below the current folder."""
    shipped = (shipped_folder() / "configs" / f"{RUN}.yaml").read_text()
    own = tmp_path / "configs" / f"{RUN}.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(shipped.replace("max_steps: 10", "max_steps: 3"))
    settings = [part for setting in tiny.SETTINGS if "max_steps" not in setting for part in ("--set", setting)]
    done = outside(tmp_path, "run", RUN, *settings, "-k", "finite or trainable_set", shared=True)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "verdict: PASS — 2 checks passed" in done.stdout
    (session,) = (tmp_path / "reports" / "runs").glob("2*/")
    (run,) = VERDICTS.read(session / "verdict.json").runs
    assert (run.name, len(run.losses)) == (RUN, 3)
    assert run.precision == "fp32"
    assert not (project_folder() / "reports" / "runs" / session.name).exists()


def test_the_status_is_the_sessions(tmp_path):
    """A failed check, no selected check, and a wrong key."""
    failed = outside(
        tmp_path,
        "run",
        "quick",
        *SETTINGS,
        "-k",
        "adapters_applied",
        "--set",
        "checks.adapters_applied.min_difference=1e9",
        shared=True,
    )
    none = outside(tmp_path, "run", "quick", "-k", "no_such_check")
    wrong = outside(tmp_path, "run", "quick", "--set", "lora.rank=8")

    assert (failed.returncode, none.returncode, wrong.returncode) == (1, 5, 4)
    assert "verdict: FAIL" in failed.stdout
    assert "-k 'no_such_check' matches no run and no check of quick" in none.stderr
    assert "lora.rank: unknown key" in wrong.stderr


@pytest.mark.parametrize("words", [["run", "quick"], ["list", "--tier", "quick"]])
def test_a_tier_without_a_run_is_a_usage_error(tmp_path, words):
    """An empty list of runs would otherwise end with status 0."""
    program = (
        "import sys; from pathlib import Path; from tunecheck.core import paths\n"
        "paths.configs_folders = lambda: (Path('empty'),)\n"
        "from tunecheck.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    done = outside(tmp_path, *words, program=program)

    assert done.returncode == 4, done.stdout + done.stderr
    assert "no run of quick in empty; set TUNECHECK_CONFIGS to a folder that has one" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
