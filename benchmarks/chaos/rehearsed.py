"""Faults of a GPU: rehearsed on a fake NVML, torch or session by these tests, until there is a card to break."""

from __future__ import annotations

REHEARSED: dict[str, tuple[str, str]] = {
    "GPU lost during a run (Xid 79)": (
        "hardware, whatever failed",
        "tests/hardware/test_monitor.py::test_a_lost_card_is_a_fault",
    ),
    "all GPUs gone between two runs": (
        "error, 6: no run moves to the CPU in silence",
        "tests/session/test_leases.py::test_a_card_that_goes_away_is_not_leased",
    ),
    "driver not loaded, driver and library disagree": (
        "a sentence and a remedy for each",
        "tests/hardware/test_hardware.py::test_each_error_of_the_driver_has_its_sentence",
    ),
    "GPU that torch does not see": (
        "error: not a slow pass on the CPU",
        "tests/runner/test_runner.py::test_a_gpu_that_torch_does_not_see_is_an_error_not_a_slow_pass",
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
    "out of GPU memory": (
        "fallback chain, losses as on the CPU",
        "tests/runner/test_runner.py::test_out_of_memory_falls_back_to_the_cpu_with_the_same_losses",
    ),
    "a library exits for lack of GPU memory": (
        "out of memory, not a crash",
        "tests/runner/test_runner.py::test_a_library_that_exits_for_lack_of_memory_is_an_out_of_memory_error",
    ),
    "NVML hangs": (
        "unknown, and the session goes on",
        "tests/hardware/test_hardware.py::test_an_nvml_that_hangs_does_not_hang_the_session",
    ),
    "NVML hangs during a run": (
        "the telemetry is partial: unknown, not clean",
        "tests/hardware/test_monitor.py::test_an_nvml_that_hangs_later_is_noticed_at_the_end",
    ),
    "the sampling process is killed": (
        "the telemetry is partial: unknown, not clean",
        "tests/hardware/test_monitor.py::test_a_sampler_that_is_killed_leaves_what_it_saw_and_no_clean_bill",
    ),
    "another process holds the GPU": (
        "waited for, with its process id",
        "tests/session/test_leases.py::test_another_process_is_waited_for_and_named",
    ),
    "a neighbour takes GPU memory or time": (
        "environment for a slow run, never for a wrong loss",
        "tests/results/test_domain.py::test_memory_that_nobody_is_named_for_is_company_too",
    ),
    "heat and power: throttling": (
        "environment for a slow run, never for a wrong loss",
        "tests/results/test_domain.py::test_single_readings_are_no_throttling",
    ),
    "uncorrected ECC errors, row remapping": (
        "hardware",
        "tests/results/test_domain.py::test_every_xid_has_a_class_and_unknown_ones_are_unclear",
    ),
    "MIG slice, card without ECC": (
        "unsupported is neither good nor bad",
        "tests/hardware/test_hardware.py::test_not_supported_is_none_and_no_problem",
    ),
    "another GPU than the leased one": (
        "refused",
        "tests/session/test_leases.py::test_another_card_than_the_leased_one_is_refused",
    ),
}
"""Fault to what has to come of it and the test that shows it."""
