"""NVML through the real bindings and a compiled library, in the processes that ask it on a card.

The library is that of scripts/chaos.sh, which injects many more faults, into trainings.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.chaos.driver import GIB, MIB, UUID, Driver, lacking
from tunecheck.core.evidence import DeviceSample, Health, Telemetry
from tunecheck.hardware import NvmlState, nvml
from tunecheck.hardware.facts import NvmlView
from tunecheck.hardware.monitor import Meter

pytestmark = pytest.mark.skipif(bool(lacking()), reason=lacking())


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A driver that processes which start now will find."""
    driver = Driver(tmp_path / "driver")
    for name, value in driver.environment.items():
        monkeypatch.setenv(name, value)
    return driver


def seen(timeout_seconds: float = 20.0) -> NvmlView:
    """What the helper process reads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvml, "library_loads", lambda: True)
        patch.setattr(nvml, "TIMEOUT_SECONDS", timeout_seconds)
        return nvml.nvml_view()


def test_a_healthy_card_is_read_whole(library: Driver) -> None:
    """Names, sizes and processes as the library has them; a process that has ended holds nothing."""
    library.hold(os.getpid(), 2 * GIB)
    library.hold(2**22 + 1, 3 * GIB)  # no such process

    view = seen()

    (gpu,) = view.gpus
    assert (view.nvml_state, view.driver_cuda, gpu.driver_version) == (NvmlState.WORKS, "13.0", "580.65.06")
    assert (gpu.uuid, gpu.name, gpu.compute_capability, gpu.mig) == (UUID, "Made-up Card", "8.0", False)
    assert (gpu.total_bytes, gpu.free_bytes) == (24 * GIB, 22 * GIB - 600 * MIB)
    assert [(p.pid, p.used_bytes, p.name) for p in gpu.memory_by_process or ()] == [(os.getpid(), 2 * GIB, "python3")]


@pytest.mark.parametrize(
    ("line", "state", "words"),
    [
        ("nvmlInit* ! 18", NvmlState.VERSION_MISMATCH, "different versions"),
        ("nvmlDeviceGetHandle* ! 15", NvmlState.GPU_LOST, "the GPU is lost"),
        ("nvmlInit* crashes", NvmlState.OTHER, "was killed by SIGSEGV"),
        ("nvmlDeviceGetName hangs", NvmlState.HUNG, "did not answer within 3 s"),
    ],
)
def test_a_driver_that_fails_is_told_from_one_that_hangs(
    library: Driver, line: str, state: NvmlState, words: str
) -> None:
    """Each in its own words."""
    library.say(line)

    view = seen(3.0)

    assert view.nvml_state is state
    assert words in (view.nvml_problem or "")


def watched(library: Driver, folder: Path, happens: Callable[[], None]) -> tuple[list[Health], list[int], Telemetry]:
    """Counters, Xids and completeness of an attempt, during which this happens."""
    meter = Meter(UUID, folder)
    meter.watch(os.getpid())
    happens()
    *records, end = meter.stop()
    assert isinstance(end, Telemetry)
    xids = [xid for record in records if isinstance(record, DeviceSample) for xid in record.xids]
    return [record for record in records if isinstance(record, Health)], xids, end


def test_what_happens_to_the_card_while_it_is_watched_is_recorded(library: Driver, tmp_path: Path) -> None:
    """Events since the sampling began, to its very end, and counters before and after; an Xid of before is no news."""
    library.happen(8, 31)

    def happens() -> None:
        library.happen(8, 79)
        library.say("nvmlDeviceGetTotalEccErrors 7 1", "nvmlDeviceGetRemappedRows 0 0 1")

    (before, after), xids, end = watched(library, tmp_path, happens)

    assert xids == [79]
    assert (before.uncorrected_ecc, before.remap_pending) == (0, False)
    assert (after.uncorrected_ecc, after.remap_pending) == (1, True)
    assert end.complete


def test_a_driver_that_stops_answering_is_no_driver_that_saw_nothing(library: Driver, tmp_path: Path) -> None:
    """As in a container that loses its GPU: every call is an unknown error from then on."""
    (_, after), _, end = watched(library, tmp_path, lambda: library.say("nvmlDevice* ! 999"))

    assert (after.fault, after.uncorrected_ecc) == ("", None)
    assert (end.complete, "error 999" in end.problem) == (False, True)


def test_a_card_that_is_lost_when_the_sampling_begins_is_a_fault_of_the_hardware(
    library: Driver, tmp_path: Path
) -> None:
    """Between the lease and the attempt: the sampling process has nothing else to tell."""
    library.say("nvmlDeviceGetHandleByUUID ! 15")

    (before,), _, end = watched(library, tmp_path, lambda: None)

    assert "the GPU is lost" in before.fault
    assert not end.complete
