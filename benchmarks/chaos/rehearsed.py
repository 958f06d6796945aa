"""Faults that no run is given by scripts/chaos.sh: rehearsed on a fake machine or session by these tests."""

from __future__ import annotations

REHEARSED: dict[str, tuple[str, str]] = {
    "all GPUs gone between two runs": (
        "error, 6: no run moves to the CPU in silence",
        "tests/session/test_leases.py::test_a_card_that_goes_away_is_not_leased",
    ),
    "no GPU where --require-gpu demands one": (
        "nothing that a CPU has done is green",
        "tests/checks/test_fallback_checks.py::test_under_require_gpu_no_run_is_green_that_a_cpu_has_done",
    ),
    "a worker of pytest -n is killed": (
        "an error that names it; nothing is trained twice",
        "tests/session/test_workers.py::test_a_killed_worker_is_an_error_with_a_name_and_nothing_is_repeated",
    ),
    "an installed library cannot be imported": (
        "environment: the training process says so",
        "tests/runner/test_failing_imports.py::test_the_run_says_so",
    ),
    "a library exits for lack of GPU memory": (
        "out of memory, not a crash",
        "tests/runner/test_runner.py::test_a_library_that_exits_for_lack_of_memory_is_an_out_of_memory_error",
    ),
    "another GPU than the leased one": (
        "refused",
        "tests/session/test_leases.py::test_another_card_than_the_leased_one_is_refused",
    ),
}
"""Fault to what has to come of it and the test that shows it."""
