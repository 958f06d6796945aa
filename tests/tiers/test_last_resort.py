"""Sessions that cannot go as they should: pytest shows none of its own errors, the status is of docs/cli.md's table."""

from __future__ import annotations

import os
import signal
import subprocess
import warnings
from types import SimpleNamespace

import pytest
import tiny
from tier_sessions import COMMAND, run_on_shared_server

from tunecheck.cli import main
from tunecheck.core.paths import project_folder
from tunecheck.plugin import spare_cache
from tunecheck.results.stored import VERDICTS

TINY = [argument for setting in tiny.SETTINGS for argument in ("--set", setting)]
LONG_NAME = "x" * 300


def started(folder, *arguments, **variables):
    """Start pytest in the project, its reports below this folder."""
    path = os.pathsep.join(filter(None, (str(project_folder()), os.environ.get("PYTHONPATH"))))
    own = {"TUNECHECK_REPORTS": str(folder / "reports"), "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=project_folder(),
        env={**os.environ, **own, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def told(process):
    """The status and the output, which never holds a traceback or one of pytest's own errors."""
    output, _ = process.communicate(timeout=120)
    assert "Traceback" not in output, output
    assert "INTERNALERROR" not in output, output
    return process.returncode, output


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["-m", "quick", "-k", "a b c"], 4, "Wrong expression passed to '-k': a b c"),
        (["-m", "quick", "--set", "deadline=99999999999999h"], 4, "deadline: should be less than or equal to 2592000"),
        (["-m", "quick", "-p", "no:capture"], 4, "-p no:capture disables a plugin that tunecheck reports with"),
        (["-m", "quick", "-p", "no:terminal"], 4, "-p no:terminal disables a plugin that tunecheck reports with"),
        (["-m", "quick", "--card", LONG_NAME], 4, "configs/cards has no 'xxx"),
        (["-m", "quick", "--run", f"{LONG_NAME}.yaml"], 4, "there is no file 'xxx"),
    ],
)
def test_what_cannot_be_run_is_a_message(tmp_path, arguments, status, words):
    """In one or two lines, with the value."""
    found, output = told(started(tmp_path, *arguments))

    assert (found, words in output) == (status, True), output


def test_a_reports_folder_of_300_letters_is_a_message(tmp_path):
    """The file system's own word for it."""
    status, output = told(started(tmp_path, "-m", "quick", *TINY, TUNECHECK_REPORTS=f"/tmp/{LONG_NAME}"))

    assert status == 4
    assert "no report can be written there: File name too long" in output


@pytest.mark.parametrize("kind", ["is missing", "is a file", "has a file for a tier"])
def test_a_configs_folder_that_is_none(tmp_path, kind):
    """It is named where it was named; a file in a tier's place holds no run."""
    folder = tmp_path / "configs"
    if kind == "is a file":
        folder.touch()
    if kind == "has a file for a tier":
        folder.mkdir()
        (folder / "quick").touch()
    status, output = told(started(tmp_path, "--collect-only", "-q", "-m", "quick", TUNECHECK_CONFIGS=str(folder)))

    if kind == "has a file for a tier":
        assert status == 0
    else:
        assert status == 4
        assert f"{folder}: there is no such folder" in output


def test_ctrl_c_in_the_collection_is_an_interrupt(tmp_path):
    """Nothing was judged, so there is no report."""
    (tmp_path / "slow.py").write_text(
        "import time\ndef pytest_collection(session):\n    print('now', flush=True)\n    time.sleep(60)\n"
    )
    path = os.pathsep.join([str(tmp_path), str(project_folder())])
    process = started(tmp_path, "-m", "quick", "-s", "-p", "slow", PYTHONPATH=path)
    while "now" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)

    assert told(process)[0] == 2
    assert not list((tmp_path / "reports").glob("*/verdict.json"))


def test_an_error_of_our_own_is_one_line_and_the_others_are_judged(tmp_path):
    """Where the trainer raises what nobody foresaw: once, not for every check; the traceback is in a file."""
    (tmp_path / "broken.py").write_text(
        "from tunecheck.runner import Runner\nreal = Runner.execute\n"
        "def execute(self, run):\n"
        "    if run.id == 'two-broken': raise KeyError('made up')\n"
        "    return real(self, run)\n"
        "Runner.execute = execute\n"
    )
    configs = tmp_path / "configs" / "quick"
    configs.mkdir(parents=True)
    text = (project_folder() / "configs" / "quick" / "smollm2-135m-qlora.yaml").read_text()
    for name in ("one-good", "two-broken"):
        (configs / f"{name}.yaml").write_text(text)
    (configs / "three-wrong.yaml").write_text("model: [\n")
    names = [argument for name in ("one-good", "two-broken", "three-wrong") for argument in ("--run", f"quick/{name}")]
    places = {"PYTHONPATH": str(tmp_path), "TUNECHECK_CONFIGS": str(configs.parent)}
    done = run_on_shared_server(tmp_path / "reports", "-m", "quick", "-p", "broken", *names, *TINY, **places)
    output = done.stdout + done.stderr
    (folder,) = (tmp_path / "reports").iterdir()
    rows = {row.run: row for row in VERDICTS.read(folder / "verdict.json").runs}

    assert done.returncode == 4, output
    assert "Traceback" not in output
    assert "INTERNALERROR" not in output
    assert {name: row.outcome for name, row in rows.items()} == {
        "one-good": "pass",
        "two-broken": "error",
        "three-wrong": "error",
    }
    assert output.count("KeyError: 'made up'") <= 3, "in pytest's section, in the report and in its summary"
    assert "KeyError: 'made up'" in (folder / "error.txt").read_text()
    assert rows["two-broken"].domain == "unknown"
    assert "not valid YAML" in rows["three-wrong"].reason


def test_a_session_whose_hook_fails_could_not_be_judged(tmp_path):
    """Another plugin's error, too: one line, and a file."""
    (tmp_path / "bad.py").write_text("def pytest_collection_modifyitems(items):\n    raise KeyError('made up')\n")
    path = os.pathsep.join([str(tmp_path), str(project_folder())])
    status, output = told(started(tmp_path, "-m", "quick", "-p", "bad", PYTHONPATH=path, TMPDIR=str(tmp_path)))

    assert status == 6
    assert output.count("made up") == 1
    assert "KeyError: 'made up'" in next(tmp_path.glob("tunecheck-error-*.txt")).read_text()


def test_a_bad_file_hides_no_other_from_the_list(tmp_path, monkeypatch, capsys):
    """The list is whole, the problem is told after it, and the status says so."""
    (tmp_path / "quick").mkdir()
    (tmp_path / "quick" / "bad.yaml").write_text("model: [\n")
    monkeypatch.setenv("TUNECHECK_CONFIGS", str(tmp_path))

    assert main(["list"]) == 4
    shown = capsys.readouterr()
    assert "  llama-7b-qlora: " in shown.out
    assert "quick/bad.yaml:2:1: not valid YAML" in shown.err


def test_the_command_has_a_last_resort(tmp_path, monkeypatch, capsys):
    """An error that nobody foresaw: one line, a file, and the status of what could not be judged."""
    monkeypatch.setattr("tunecheck.cli.runs.load_run", lambda *_: {}["made up"])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    assert main(["show", "quick/smollm2-135m-qlora"]) == 6
    shown = capsys.readouterr().err
    assert shown.startswith("tunecheck: an error of tunecheck itself, so this could not be judged: KeyError: 'made up'")
    (kept,) = tmp_path.iterdir()
    assert "Traceback" in kept.read_text()
    monkeypatch.setattr("tunecheck.cli.runs.load_run", _interrupt)
    assert main(["show", "quick/smollm2-135m-qlora"]) == 2


def _interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "qick"], "no tier or run is called 'qick' (did you mean 'quick'?)\n"),
        (["show", "quick/smollm2-135m-qlor"], "qlor' (did you mean 'quick/smollm2-135m-qlora'?)\n"),
        (
            ["show", "quick/smollm2-135m-qlora", "--set", "checks.los_falls=off"],
            "no check is called 'los_falls' (did you mean 'loss_falls'?)\n",
        ),
    ],
)
def test_a_near_miss_is_answered_with_the_name_alone(words, message, capsys):
    """Not with all the others."""
    assert main(words) == 4
    assert capsys.readouterr().err.endswith(message)


@pytest.mark.parametrize("error", [pytest.PytestCacheWarning("could not create"), OSError(28, "No space left")])
def test_a_cache_that_cannot_be_written_ends_no_session(error):
    """Neither by a warning, which is an error here, nor by a disk that is full."""

    def write(key, value):
        if isinstance(error, OSError):
            raise error
        warnings.warn(error, stacklevel=1)

    config = SimpleNamespace(cache=SimpleNamespace(set=write))
    spare_cache(config)
    config.cache.set("cache/nodeids", [])
