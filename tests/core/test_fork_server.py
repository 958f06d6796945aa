"""A session leaves no process behind, also where it needs none."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from tunecheck.core.paths import project_folder


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
