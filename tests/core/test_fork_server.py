"""When a session's imports begin before pytest has read anything, and that they end with a session that needs none."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from tunecheck.core import fork_server
from tunecheck.core.paths import project_folder


@pytest.fixture
def began(monkeypatch):
    """Return a function that says whether these arguments begin the imports, on a machine without a driver."""
    monkeypatch.setattr(fork_server, "DRIVERS", ())
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)

    def ask(*arguments):
        begun = []
        with monkeypatch.context() as patched:
            patched.setattr(fork_server, "warm_up", lambda gpu: begun.append(gpu))
            patched.setattr("atexit.register", lambda function: None)
            fork_server.head_start(arguments)
        return begun == [False]

    return ask


@pytest.mark.parametrize("arguments", [["-m", "quick"], ["-q", "-m", "convergence", "-k", "finite"]], ids=" ".join)
def test_a_tier_that_is_asked_for_by_its_marker_begins_at_once(began, arguments):
    """Whatever else is asked."""
    assert began(*arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["tests"],
        ["-m", "slow"],
        ["-m", "not quick"],
        ["-m"],
        ["-m", "quick", "--collect-only"],
        ["-m", "quick", "--in-process"],
        ["-m", "quick", "-n", "2"],
        ["-m", "quick", "-nauto"],
    ],
    ids=" ".join,
)
def test_what_trains_nothing_in_a_child_of_this_process_begins_nothing(began, arguments):
    """Other tests, a mere list, and workers, who have children of their own."""
    assert not began(*arguments)


def test_neither_a_gpus_driver_nor_options_of_the_environment_are_guessed_at(began, monkeypatch, tmp_path):
    """On a GPU a child imports for itself; $PYTEST_ADDOPTS may ask for workers."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "-q")
    assert not began("-m", "quick")

    monkeypatch.delenv("PYTEST_ADDOPTS")
    monkeypatch.setattr(fork_server, "DRIVERS", (str(tmp_path / "absent"), str(tmp_path)))
    assert not began("-m", "quick")


def left_in(folder):
    """The processes whose temporary folder is this one."""
    environments = [process.info["environ"] or {} for process in psutil.process_iter(["environ"])]
    return [each for each in environments if each.get("TMPDIR") == str(folder)]


def test_a_session_that_needs_no_child_leaves_none(tmp_path):
    """No process of it is left, and the usage error is what it is without."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "quick", "-k", "no_such_check", "--basetemp", str(tmp_path / "pytest")],
        cwd=project_folder(),
        env={**environment, "TMPDIR": str(tmp_path), "TUNECHECK_REPORTS": str(tmp_path / "reports")},
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout + done.stderr
    until = time.monotonic() + 10  # multiprocessing's resource tracker ends when it sees that the session has
    while left_in(tmp_path) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left_in(tmp_path)
