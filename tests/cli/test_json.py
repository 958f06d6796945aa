"""`--json`: one document on standard output, the same exit status, everything else on standard error."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import pytest
import shared_fork_server
import tiny
from fleets import answer
from sessions import write_trace
from traces import healthy

from tunecheck.cli import main
from tunecheck.cli.commands import parser
from tunecheck.core.paths import project_folder
from tunecheck.results.fleet import ANSWER_FILE
from tunecheck.results.stored import write_record

WITHOUT = {"completion": "its result is a shell's script"}
"""Commands without --json to the reason."""
RUN = "quick/smollm2-135m-qlora"
KEYS = {
    "list": "quick",
    "list --needs --tier quick": "runs",
    f"show {RUN}": "fingerprint",
    "strategies": "strategies",
    "doctor": "diagnoses",
    "fetch rust-python-facts": 0,
    "judge SESSION/run.jsonl": "verdict",
    "rows SESSION": "rows",
    "page SESSION": "page",
    "fallback-table SESSION": "attempts",
    "history --rebuild": 0,
    f"history {RUN}": None,
    "compare SESSION SESSION": 0,
    "baseline accept convergence/two-layers-qlora": "file",
    "baseline show": None,
    f"baseline diff {RUN}": None,
    "prune --dry-run": "removed",
    "prune --keep 5": "freed_bytes",
    "explain finite": "check",
    "explain": 0,
    "explain SESSION": 0,
    "fleet --judge FLEET": "rows",
}
"""Command to a key, or an index, of its document; None where the document is empty."""
ELSEWHERE = {
    "bench": "tests/session/test_bench.py trains once",
    "estimate": "tests/memory/test_estimate.py simulates",
    "run": "trains, below",
    "watch": "trains, below",
}
"""Commands whose documents other tests read."""


def commands(command: argparse.ArgumentParser, name: str = ""):
    """Yield name and parser of each command that can be executed."""
    below = [action for action in command._actions if isinstance(action, argparse._SubParsersAction)]
    for action in below:
        for word, held in action.choices.items():
            yield from commands(held, f"{name} {word}".strip())
    if not below:
        yield name, command


def test_every_command_can_print_json_and_is_tried():
    """Or says here why not."""
    all_of_them = dict(commands(parser()))
    lacking = {name for name, command in all_of_them.items() if "--json" not in command._option_string_actions}

    assert lacking == WITHOUT.keys()
    tried = {name for name in all_of_them if any(f"{words} ".startswith(f"{name} ") for words in KEYS)}
    assert tried | ELSEWHERE.keys() == all_of_them.keys() - lacking


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Return the folders of a session, the first of eight, and of a fleet."""
    reports = tmp_path / "reports"
    monkeypatch.setenv("TUNECHECK_REPORTS", str(reports))
    monkeypatch.setenv("TUNECHECK_BASELINES", str(tmp_path / "baselines"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    sessions = [reports / f"2026112{day}T040430Z-1" for day in range(8)]
    for session in sessions:
        session.mkdir(parents=True)
        write_trace(session / "run.jsonl", healthy())
    fleet = reports / "fleet"
    write_record(answer(0), fleet / "nodes" / "n0" / ANSWER_FILE)
    return {"SESSION": str(sessions[0]), "FLEET": str(fleet)}


@pytest.mark.parametrize("command", KEYS)
def test_the_document_is_all_that_is_printed(command, places, capsys):
    """The exit status is that without --json."""
    words = [word.replace("SESSION", places["SESSION"]).replace("FLEET", places["FLEET"]) for word in command.split()]
    if words[0] in ("baseline", "compare"):
        main(["history", "--rebuild"])
    status = main(words)
    capsys.readouterr()

    at = 2 if words[0] == "baseline" else 1
    assert main([*words[:at], "--json", *words[at:]]) == status
    document, key = json.loads(capsys.readouterr().out), KEYS[command]
    if key is None:
        assert document in ([], {})
    else:
        assert document[key] not in ("", None)


def test_an_error_prints_no_document(capsys):
    """Its message stands on standard error."""
    assert main(["show", "quick/none", "--json"]) == 4
    assert capsys.readouterr().out == ""


def tunecheck(folder, *words):
    """Return the finished command, called in this folder."""
    command = [sys.executable, "-m", "tunecheck.cli", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_a_watched_command_prints_beside_its_verdict(tmp_path, monkeypatch):
    """A child of a child, too: the descriptor is another one, not only Python's stream."""
    monkeypatch.setenv("PYTHONPATH", str(project_folder() / "suite"))
    script = tmp_path / "train.py"
    script.write_text("import os\nprint('from Python', flush=True)\nos.system('echo from a shell')\n")
    done = tunecheck(tmp_path, "watch", "--json", "--", sys.executable, str(script))

    assert done.returncode == 6
    assert done.stdout.count("\n") == 1
    (written,) = tmp_path.glob("reports/runs/*/verdict.json")
    assert json.loads(done.stdout) == json.loads(written.read_text())
    assert all(words in done.stderr for words in ("from Python", "from a shell", "verdict: INCONCLUSIVE", "report: "))


def test_a_session_prints_its_verdict(tmp_path, monkeypatch):
    """What pytest prints stands on standard error."""
    monkeypatch.setenv("PYTHONPATH", str(project_folder() / "suite"))
    for name, value in shared_fork_server.variables().items():
        monkeypatch.setenv(name, value)
    settings = [word for setting in [*tiny.SETTINGS, "training.max_steps=3"] for word in ("--set", setting)]
    failing = ["--set", "checks.adapters_applied.min_difference=1e9", "-k", "adapters_applied"]
    done = tunecheck(tmp_path, "run", RUN, "--json", *settings, *failing)

    assert done.returncode == 1, done.stderr
    assert done.stdout.count("\n") == 1
    assert json.loads(done.stdout)["runs"][0]["findings"][0]["check"] == "adapters_applied"
    assert "verdict: FAIL" in done.stderr
