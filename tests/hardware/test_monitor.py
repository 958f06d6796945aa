"""The meter: a card is watched by another process, which may die, hang or be refused without a word being lost."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from metered import UUID, sample

from tunecheck.core.evidence import CardProcess, DeviceSample, Health, Record, Telemetry
from tunecheck.hardware import monitor
from tunecheck.hardware.monitor import Meter, merged, thinned
from tunecheck.hardware.monitor.sampler import Card, commands, watch

MIB = 2**20
BINDINGS = Path(__file__).parents[1] / "fake_bindings"


def driver(monkeypatch: pytest.MonkeyPatch, **scenario: Any) -> Any:
    """The fake bindings, giving these answers, loaded into this process."""
    monkeypatch.setenv("FAKE_NVML", json.dumps(scenario))
    spec = importlib.util.spec_from_file_location("fake_pynvml", BINDINGS / "pynvml.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def meter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Meter]:
    """Makes a meter whose sampling process has the fake bindings with these answers."""

    def make(*, answer_seconds: float = 10.0, **scenario: Any) -> Meter:
        monkeypatch.setenv("FAKE_NVML", json.dumps(scenario))
        monkeypatch.setenv("PYTHONPATH", str(BINDINGS))
        monkeypatch.setattr(monitor, "ANSWER_SECONDS", answer_seconds)
        return Meter(UUID, tmp_path)

    return make


def kinds(records: list[Record]) -> list[str]:
    """Their names, each once."""
    return list(dict.fromkeys(type(record).__name__ for record in records))


def last(records: list[Record]) -> Telemetry:
    """How complete it was."""
    assert isinstance(records[-1], Telemetry)
    return records[-1]


# One card.


def test_a_cards_health_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every counter from its NVML function, in the units of its name."""
    health = Card(driver(monkeypatch), UUID).health("before")
    assert health == Health(
        when="before",
        uncorrected_ecc=3,
        remapped_rows_uncorrected=0,
        remap_pending=False,
        remap_failed=False,
        retired_pages_pending=None,
        recovery_action=0,
    )


def test_what_a_card_or_its_bindings_do_not_tell_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not supported, function missing, and a field whose own status says no: none is a number."""
    module = driver(
        monkeypatch,
        nvmlDeviceGetTotalEccErrors={"error": 3},
        nvmlDeviceGetRemappedRows=None,
        nvmlDeviceGetFieldValues=[{"nvmlReturn": 3, "value": {"uiVal": 7}}],
        nvmlDeviceGetCurrentClocksEventReasons={"error": 13},
        nvmlDeviceGetTemperature={"error": 3},
        nvmlDeviceGetMemoryInfo={"error": 3},
    )
    card = Card(module, UUID)
    health, seen = card.health("after"), card.sample(1)
    assert (health.uncorrected_ecc, health.remap_failed, health.recovery_action) == (None, None, None)
    assert (seen.clock_reasons, seen.used_bytes, seen.temperature_celsius) == (None,) * 3
    assert health.fault == ""


def test_older_names_of_the_clock_reasons_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Throttle reasons became event reasons."""
    names = {"nvmlDeviceGetCurrentClocksEventReasons": None, "nvmlDeviceGetCurrentClocksThrottleReasons": 0x48}
    assert Card(driver(monkeypatch, **names), UUID).sample(1).clock_reasons == {
        "hardware slowdown": 1,
        "hardware thermal slowdown": 1,
    }


def test_a_lost_card_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was being asked when it went."""
    card = Card(driver(monkeypatch, nvmlDeviceGetClockInfo={"error": 15}), UUID)
    assert card.sample(1).sm_clock_mhz is None
    assert "the GPU: the GPU is lost" in card.health("after").fault


def test_an_unknown_error_of_the_driver_is_no_broken_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what NVML calls lost or in need of a reset is the hardware's."""
    assert Card(driver(monkeypatch, nvmlDeviceGetClockInfo={"error": 999}), UUID).health("after").fault == ""


def test_the_training_process_is_told_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its id; the arguments of a command line are never kept."""
    processes = [{"pid": 7, "usedGpuMemory": 5 * MIB}, {"pid": 8, "usedGpuMemory": None}]
    card = Card(driver(monkeypatch, nvmlDeviceGetComputeRunningProcesses=processes), UUID)
    seen = card.sample(7)
    assert (seen.process_seen, seen.process_bytes) == (True, 5 * MIB)
    assert seen.others == (CardProcess(pid=8, name="python3", used_bytes=None),)
    assert (card.sample(9).process_seen, len(card.sample(9).others)) == (False, 2)


def test_a_rank_is_the_trainings_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What watches is told the process that started it; a process of somebody else's is none."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as rank:
        processes = [{"pid": rank.pid, "usedGpuMemory": 5 * MIB}, {"pid": os.getppid(), "usedGpuMemory": MIB}]
        card = Card(driver(monkeypatch, nvmlDeviceGetComputeRunningProcesses=processes), UUID)
        before, seen, after = card.sample(None), card.sample(os.getpid()), card.sample(None)
        rank.communicate(b"\n")
    assert [[other.descendant for other in sample.others] for sample in (before, after)] == [[False] * 2, [True, False]]
    assert (seen.process_seen, seen.process_bytes) == (True, 5 * MIB)
    assert [other.pid for other in seen.others] == [os.getppid()]


def test_a_library_without_the_newest_version_of_a_function_lists_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bindings then raise an error that is not NVML's."""
    module = driver(monkeypatch)
    module.NVMLLibraryMismatchError = type("NVMLLibraryMismatchError", (Exception,), {})

    def unversioned(handle: Any) -> Any:
        raise module.NVMLLibraryMismatchError

    module.nvmlDeviceGetComputeRunningProcesses = unversioned
    assert Card(module, UUID).sample(None).others == ()


def test_windows_are_listed_as_what_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that computes as well is one that computes."""
    drawing = [{"pid": 7, "usedGpuMemory": 5 * MIB}, {"pid": 8, "usedGpuMemory": MIB}]
    lists = {"nvmlDeviceGetComputeRunningProcesses": drawing[1:], "nvmlDeviceGetGraphicsRunningProcesses": drawing}
    seen = Card(driver(monkeypatch, **lists), UUID).sample(None)
    assert {process.pid: process.graphics for process in seen.others} == {7: True, 8: False}


def test_xids_and_other_events_are_heard_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they came, until the driver has no more news."""
    news = [{"eventType": 0x8, "eventData": 31}, {"eventType": 0x2000, "eventData": 0}, {"eventType": 2**20}]
    card = Card(driver(monkeypatch, news=news), UUID)
    seen = card.sample(1)
    assert (seen.xids, seen.events) == ((31,), ("fatal poison", "event 0x100000"))
    assert card.sample(1).xids == ()


@pytest.mark.parametrize(
    "scenario",
    [{"nvmlDeviceRegisterEvents": {"error": 4}}, {"nvmlDeviceGetSupportedEventTypes": {"error": 3}}],
    ids=["not permitted", "not supported"],
)
def test_a_card_without_events_is_sampled_all_the_same(monkeypatch: pytest.MonkeyPatch, scenario: Any) -> None:
    """No Xid is then no evidence either way."""
    seen = Card(driver(monkeypatch, news=[{"eventType": 8, "eventData": 79}], **scenario), UUID).sample(1)
    assert (seen.xids, seen.used_bytes) == ((), 600 * MIB)


@pytest.mark.parametrize(("code", "words"), [(999, "error 999"), (2, ""), (3, ""), (15, "")])
def test_a_driver_that_answers_no_more_has_not_watched_to_the_end(
    monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    """What a GPU does not report is no error, and one that is lost is a finding by itself."""
    card = Card(driver(monkeypatch), UUID)
    card.health("before")
    later = driver(monkeypatch, nvmlDeviceGetTotalEccErrors={"error": code})
    card._nvml = later
    card.health("after")
    assert words in card.unanswered
    assert bool(card.unanswered) is bool(words)


def test_an_error_that_passed_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counters at the end are what counts."""
    card = Card(driver(monkeypatch, nvmlDeviceGetClockInfo={"error": 999}), UUID)
    card.sample(1)
    assert "999" in card.unanswered
    card.health("after")
    assert card.unanswered == ""


# Samples put together.


def test_samples_put_together_lose_no_maximum_and_no_xid() -> None:
    """Maxima, a mean clock by readings, reasons counted, each process once with its most."""
    small = CardProcess(pid=8, name="python3", used_bytes=MIB)
    large = CardProcess(pid=8, name="python3", used_bytes=9 * MIB)
    first = sample(0.0, readings=1, sm_clock_mhz=1000.0, clock_reasons=None, others=(large,), xids=(31,))
    second = sample(5.0, readings=3, sm_clock_mhz=2000.0, process_bytes=None, process_seen=False, others=(small,))
    both = merged([first, second])
    assert (both.at, both.seconds, both.readings, both.sm_clock_mhz) == (0.0, 9.8, 4, 1750.0)
    assert (both.process_bytes, both.process_seen, both.others, both.xids) == (2000 * MIB, True, (large,), (31,))
    assert both.clock_reasons == {"software power cap": 2}
    assert merged([sample(0.0, sm_clock_mhz=None, clock_reasons=None)]).sm_clock_mhz is None


def test_a_long_run_keeps_few_samples() -> None:
    """Whatever its length, and over all of its time."""
    many = [sample(float(at), readings=1, seconds=1.0) for at in range(1001)]
    kept = thinned(many)
    assert len(kept) <= 300
    assert (kept[0].at, kept[-1].at + kept[-1].seconds, sum(s.readings for s in kept)) == (0.0, 1001.0, 1001)
    assert thinned([]) == []
    assert thinned(many[:3]) == [merged([s]) for s in many[:3]]


def test_the_sampler_reads_between_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing before it knows the process; a sample a second; what is left over when it stops."""
    now = iter(number / 10 for number in range(1000))
    card = Card(driver(monkeypatch), UUID, clock=lambda: next(now))
    said: list[Record] = []

    watch(card, iter(["", "", "4242", *[""] * 6]), said.append)

    assert [type(record).__name__ for record in said] == [
        "Health",
        "DeviceSample",
        "DeviceSample",
        "DeviceSample",
        "Health",
        "DeviceSample",
    ]
    assert [s.readings for s in said if isinstance(s, DeviceSample)] == [1, 5, 2, 1]


def test_orders_are_lines_however_they_arrive() -> None:
    """Alone or several at once, with a sign of time in between, until the other end is closed."""
    reader, writer = os.pipe()
    arriving = commands(reader, 0.01)
    assert next(arriving) == ""
    os.write(writer, b"4242\n")
    assert [next(arriving), next(arriving)] == ["4242", ""]
    os.write(writer, b"42\n7\n")
    assert [next(arriving), next(arriving)] == ["42", "7"]
    os.close(writer)
    assert list(arriving) == []
    os.close(reader)


# The whole of it, with real processes.


def test_an_attempt_is_watched_from_before_it_to_after_it(meter: Callable[..., Meter]) -> None:
    """Health twice, samples of the process in between, completeness last."""
    watching = meter(nvmlDeviceGetComputeRunningProcesses=[{"pid": os.getpid(), "usedGpuMemory": 5 * MIB}])
    watching.watch(os.getpid())
    time.sleep(0.7)
    records = watching.stop()

    assert kinds(records) == ["Health", "DeviceSample", "Telemetry"]
    assert [record.when for record in records if isinstance(record, Health)] == ["before", "after"]
    seen = last(records)
    assert (seen.complete, seen.problem, seen.memory_source) == (True, "", "process")
    assert (seen.uuid, seen.process_id, seen.used_bytes_before) == (UUID, os.getpid(), 600 * MIB)
    assert (seen.used_bytes_after, [p.pid for p in seen.processes_after]) == (600 * MIB, [os.getpid()])
    assert seen.readings >= 2
    assert [p.pid for p in seen.processes_before] == [os.getpid()]


def test_hidden_process_ids_are_said(meter: Callable[..., Meter]) -> None:
    """Then the memory is the device's, less what it was before."""
    watching = meter()
    watching.watch(4242)
    time.sleep(0.5)
    assert last(watching.stop()).memory_source == "device"


def test_a_sampler_that_is_killed_leaves_what_it_saw_and_no_clean_bill(meter: Callable[..., Meter]) -> None:
    """Partial telemetry, with the signal."""
    watching = meter()
    watching.watch(4242)
    time.sleep(1.5)
    [child] = [p for p in psutil.Process().children() if "tunecheck.hardware.monitor.sampler" in " ".join(p.cmdline())]
    child.kill()
    records = watching.stop()
    assert "DeviceSample" in kinds(records)
    assert (last(records).complete, last(records).problem) == (False, "the sampling process was killed by SIGKILL")


def test_an_nvml_that_hangs_at_once_holds_nothing_up(meter: Callable[..., Meter]) -> None:
    """The attempt goes on unwatched, and the trace says so."""
    watching = meter(answer_seconds=1.0, nvmlInit={"sleep": 60})
    watching.watch(4242)
    assert last(watching.stop()).problem == ("NVML did not answer within 1 s and the process was killed")


def test_an_nvml_that_hangs_later_is_noticed_at_the_end(
    meter: Callable[..., Meter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hung is told apart from dead."""
    watching = meter()
    [child] = [p for p in psutil.Process().children() if "tunecheck.hardware.monitor.sampler" in " ".join(p.cmdline())]
    child.suspend()
    monkeypatch.setattr(monitor, "ANSWER_SECONDS", 0.5)
    assert last(watching.stop()).problem.startswith("NVML hung during the attempt and the sampling process was killed")


def test_an_nvml_that_refuses_is_told_with_its_words(meter: Callable[..., Meter]) -> None:
    """The sentence that the doctor would give."""
    records = meter(nvmlInit={"error": 9}).stop()
    assert kinds(records) == ["Telemetry"]
    assert last(records).problem == (
        "the sampling process ended with status 1: an NVIDIA driver is installed, but its kernel module is not loaded"
    )


def test_an_attempt_that_was_over_at_once_is_not_called_watched(meter: Callable[..., Meter]) -> None:
    """No reading, no telemetry."""
    assert last(meter().stop()).problem == "the attempt was over before the first reading"


def test_a_sampler_that_leaves_early_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even with a good exit status."""
    monkeypatch.setattr(monitor, "command_for", lambda *words: [sys.executable, "-S", "-c", "pass"])
    meter = Meter(UUID, tmp_path)
    assert last(meter.stop()).problem == "the sampling process ended before the attempt did"


def test_an_unknown_card_and_a_process_that_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both leave a record that says why there is nothing else."""
    assert last(Meter(None, tmp_path).stop()) == Telemetry(
        uuid="", complete=False, problem="unknown which GPU CUDA uses: NVML does not report it"
    )
    monkeypatch.setattr(monitor, "command_for", lambda *words: ["/no/such/python"])
    gone = Meter(UUID, tmp_path)
    gone.watch(1)
    assert last(gone.stop()).problem.startswith("the sampling process could not be started: ")


def test_a_sampler_dies_with_its_parent(tmp_path: Path) -> None:
    """However the parent ends."""
    code = (
        "import os, pathlib, sys; from tunecheck.hardware.monitor import Meter\n"
        f"Meter({UUID!r}, pathlib.Path({str(tmp_path)!r})).watch(1)\n"
        "import psutil; print(psutil.Process().children()[0].pid, flush=True); os.kill(os.getpid(), 9)"
    )
    places = os.pathsep.join([str(BINDINGS), str(BINDINGS.parents[1])])
    environment = {**os.environ, "PYTHONPATH": places, "FAKE_NVML": "{}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    pid = int(done.stdout)
    deadline = time.monotonic() + 5
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_sampling_process_never_imports_torch() -> None:
    """It must cost next to nothing beside the training."""
    code = "import sys, tunecheck.hardware.monitor.sampler; print('torch' in sys.modules, 'pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
