"""The fixture for tests of others: loaded everywhere, it leaves a session alone that does not use it."""

from __future__ import annotations

import os
import subprocess
import sys

from tunecheck.core.paths import project_folder

OTHERS = """
import sys


def test_that_has_nothing_to_do_with_it(request):
    assert [name for name in sys.modules if name.startswith("tunecheck")] == ["tunecheck", "tunecheck.pytest_fixture"]
    assert not request.config.pluginmanager.hasplugin("tunecheck")
"""
TRAININGS = """
import sys


def test_a_command_that_trains_nothing(tunecheck):
    tunecheck.run([sys.executable, "-c", "pass"])
"""


def test_a_session_is_left_alone_but_for_the_fixture(tmp_path):
    """What is judged comes with the first test that asks for it, and what does not pass fails that test."""
    (tmp_path / "test_a.py").write_text(OTHERS)
    (tmp_path / "test_b.py").write_text(TRAININGS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]  # the plugin is installed
    environment = {**os.environ, "PYTHONPATH": str(project_folder()), "PYTEST_ADDOPTS": "", "NO_COLOR": "1"}
    done = subprocess.run(
        [*command, "-c", os.devnull, "--rootdir", str(tmp_path), "test_a.py", "test_b.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "trained nothing that tunecheck can watch" in done.stdout
    assert "Traceback" not in done.stdout
