"""Sessions under plugins that repeat, shuffle or leave out tests, and under python -O: each failure is told once."""

from __future__ import annotations

import json

import tiny
from tier_sessions import run_on_shared_server, run_pytest, session_folder

from tunecheck.checks import CHECKS

ONE_RUN = ["-m", "quick", "--run", "quick/smollm2-135m-qlora"]
TINY = [argument for setting in tiny.SETTINGS for argument in ("--set", setting)]
REPEATING = """from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    for _ in range(6):  # as pytest-rerunfailures and flaky
        runtestprotocol(item, nextitem=nextitem)
    return True

def pytest_collection_modifyitems(items):
    items.reverse()  # as pytest-randomly and pytest-random-order
"""


def test_a_failure_is_told_once_and_the_nearest_to_the_cause_first(tmp_path):
    """The checks keep their order, and none is an assert statement, which -O leaves out."""
    (tmp_path / "repeating.py").write_text(REPEATING)
    arguments = ["-p", "repeating", *ONE_RUN, *TINY, "--set", "checks.adapters_applied.min_difference=1e9"]
    # -O by its variable; the training's libraries, which the other process has imported, need not be compiled for it
    optimized = {"PYTHONPATH": str(tmp_path), "PYTHONOPTIMIZE": "1"}
    done = run_on_shared_server(tmp_path / "reports", *arguments, **optimized)

    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count("  measured ") == 1
    (row,) = json.loads((session_folder(tmp_path / "reports") / "verdict.json").read_text())["runs"]
    judged = [finding["check"] for finding in row["findings"]]
    assert judged == [name for name in CHECKS if name in judged]
    assert [finding["check"] for finding in row["findings"] if finding["status"] == "failed"] == ["adapters_applied"]


def test_a_session_that_executes_no_check_is_no_success(tmp_path):
    """pytest ends with 0 where it only sets up."""
    done = run_pytest(tmp_path, *ONE_RUN, *TINY, "--setup-plan")

    assert done.returncode == 6
    assert "checks were selected, but none was run: nothing was judged" in done.stderr
    assert list(tmp_path.iterdir()) == []
