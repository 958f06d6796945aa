"""The doctor: each thing that can be wrong with a machine has its line, its level and its remedy."""

from __future__ import annotations

import dataclasses
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fake_machine import CARD, CPU, GIB, SECOND, VERSIONS, machine
from huggingface_hub import constants

from tunecheck.core.errors import TRAIN_EXTRA
from tunecheck.core.evidence import CardProcess
from tunecheck.hardware import Disk, Gpu, NvmlState, doctor, network
from tunecheck.hardware.doctor import Diagnosis, error, format_diagnoses, ok, warning


def torch_with(*cards: Gpu, **changes: Any) -> dict[str, Any]:
    """torch's view of these GPUs."""
    devices = [{"index": number, "name": card.name, "uuid": card.uuid} for number, card in enumerate(cards)]
    bitsandbytes = {
        "version": "0.50.2",
        "native_library": "libbitsandbytes_cuda130.so",
        "cuda_binary_fits": True,
        "error": None,
    }
    facts = {"torch": "2.11.0+cu130", "error": None, "cuda_build": "13.0", "cuda_error": None}
    return {**facts, "devices": devices, "bitsandbytes": bitsandbytes, **changes}


def only(diagnoses: Iterator[Diagnosis]) -> Diagnosis:
    """The one diagnosis there is."""
    (diagnosis,) = diagnoses
    return diagnosis


def bad(diagnoses: Iterator[Diagnosis]) -> Diagnosis:
    """The one diagnosis that is not ok."""
    (diagnosis,) = [diagnosis for diagnosis in diagnoses if diagnosis.level != "ok"]
    assert diagnosis.remedy
    return diagnosis


# Driver and cards.


def test_working_driver() -> None:
    """The driver's version, its CUDA and the number of GPUs."""
    assert only(doctor.driver(machine(CARD))) == ok("driver", "580.65.06, CUDA up to 13.0, GPUs: 1")


def test_machine_without_gpu_is_no_error() -> None:
    """Neither a driver without GPU nor no driver at all is a fault; it is said what runs."""
    for hardware in (machine(), machine(nvml_state=NvmlState.NO_LIBRARY, nvml_problem="no driver", visible=None)):
        diagnosis = only(doctor.driver(hardware))
        assert diagnosis.level == "ok"
        assert "quick and convergence run on the CPU; memory, extended and full are skipped" in diagnosis.found


@pytest.mark.parametrize("state", [state for state in NvmlState if state not in ("works", "no_library")])
def test_broken_driver(state: NvmlState) -> None:
    """Every other state is told with NVML's own sentence and remedy."""
    diagnosis = bad(doctor.driver(machine(nvml_state=state, nvml_problem="it broke", nvml_remedy="mend it")))
    assert (diagnosis.level, diagnosis.found, diagnosis.remedy) == ("error", "it broke", "mend it")


def test_healthy_card() -> None:
    """A line with what matters, and no other."""
    diagnosis = only(doctor.cards(machine(CARD)))
    assert diagnosis == ok("GPU 0", "NVIDIA H200 (GPU-1111): 140 GiB of 141 GiB free, compute capability 9.0, bf16")


def test_card_that_tells_little() -> None:
    """What is unknown is said to be."""
    silent = {"name": None, "total_bytes": None, "free_bytes": None, "compute_capability": None, "bf16": None}
    diagnosis = only(doctor.cards(machine(dataclasses.replace(CARD, memory_by_process=None, **silent))))
    assert diagnosis == ok(
        "GPU 0", "of unknown name (GPU-1111): ? GiB of ? GiB free, compute capability ?, bf16 unknown"
    )


def test_card_that_the_variable_hides() -> None:
    """A hidden GPU is not examined, and a variable that hides all is a warning."""
    assert [diagnosis.topic for diagnosis in doctor.cards(machine(CARD, SECOND, visible=("GPU-2222",)))] == ["GPU 1"]
    diagnosis = bad(doctor.cards(machine(CARD, visible=(), environment={"CUDA_VISIBLE_DEVICES": "-1"})))
    assert diagnosis.topic == "CUDA_VISIBLE_DEVICES"
    assert diagnosis.found.startswith("'-1' hides every GPU; quick and convergence run on the CPU")


def test_problem_with_the_variable() -> None:
    """What probe found wrong is passed on; with an unknown choice all cards are examined."""
    lines = list(doctor.cards(machine(CARD, SECOND, visible=None, visible_problem="entry 1 is odd")))
    assert lines[0] == warning(
        "CUDA_VISIBLE_DEVICES", "entry 1 is odd", "name the GPUs by UUID, as `nvidia-smi -L` prints them"
    )
    assert [line.topic for line in lines[1:]] == ["GPU 0", "GPU 1"]


@pytest.mark.parametrize(
    ("mode", "level", "found"),
    [
        ("prohibited", "error", "compute mode prohibited: no process can use it"),
        ("exclusive_process", "warning", "exclusive compute mode: a second process fails"),
        ("exclusive_thread", "warning", "exclusive compute mode: a second process fails"),
    ],
)
def test_compute_mode(mode: str, level: str, found: str) -> None:
    """A mode that shuts processes out is found before a run fails on it."""
    diagnosis = bad(doctor.cards(machine(dataclasses.replace(CARD, compute_mode=mode))))
    assert (diagnosis.level, diagnosis.found) == (level, found)
    assert "nvidia-smi -i 0 -c DEFAULT" in diagnosis.remedy


def test_other_processes_on_the_card() -> None:
    """They are named with pid and memory; this process itself is no neighbour."""
    own = CardProcess(pid=os.getpid(), used_bytes=GIB, name="python")
    others = (
        own,
        CardProcess(pid=1, used_bytes=3 * GIB, name="python3"),
        CardProcess(pid=2, used_bytes=None, name=None),
    )
    diagnosis = bad(doctor.cards(machine(dataclasses.replace(CARD, memory_by_process=others))))
    assert diagnosis.level == "warning"
    assert diagnosis.found == (
        "other processes compute on it: pid 1 (python3) with 3 GiB, pid 2 (name unknown) with ? GiB"
    )
    assert [line.level for line in doctor.cards(machine(dataclasses.replace(CARD, memory_by_process=(own,))))] == ["ok"]


@pytest.mark.parametrize("processes", [(), None])
def test_memory_in_use_by_nobody(processes: tuple[CardProcess, ...] | None) -> None:
    """In a container the driver hides other processes, but not their memory."""
    busy = dataclasses.replace(CARD, free_bytes=100 * GIB, memory_by_process=processes)
    diagnosis = bad(doctor.cards(machine(busy)))
    assert diagnosis.found.startswith("41 GiB in use by processes that the driver does not list")


def test_mig_mode_without_an_instance() -> None:
    """Such a card is of no use, and the reason is not obvious."""
    empty = dataclasses.replace(CARD, mig=True, mig_instances=())
    diagnosis = bad(doctor.cards(machine(empty, visible=())))
    assert diagnosis.found == "is in MIG mode without an instance, so CUDA shows nothing of it"


# torch beside NVML.


def test_torch_and_nvml_agree_by_uuid() -> None:
    """The order does not matter, and a MIG instance's UUID matches without its kind."""
    assert only(doctor.torch_agrees(machine(CARD, SECOND), torch_with(SECOND, CARD))) == ok(
        "torch", "2.11.0+cu130 for CUDA 13.0 sees 2 GPU(s), the same as NVML by UUID"
    )
    mig = dataclasses.replace(CARD, uuid="MIG-1111")
    assert only(doctor.torch_agrees(machine(mig), torch_with(CARD))).level == "ok"
    assert only(doctor.torch_agrees(machine(CARD, SECOND, visible=None), torch_with(SECOND))).level == "ok"


def test_torch_without_uuids_stays_unchecked() -> None:
    """Nothing is claimed where an older torch does not tell."""
    facts = torch_with(devices=[{"index": 0, "name": "NVIDIA H200", "uuid": None}])
    diagnosis = only(doctor.torch_agrees(machine(CARD), facts))
    assert diagnosis.level == "ok"
    assert "so they cannot be compared with NVML's" in diagnosis.found


def test_torch_sees_other_gpus_than_nvml() -> None:
    """Both sides of the difference are named."""
    diagnosis = bad(doctor.torch_agrees(machine(CARD), torch_with(SECOND)))
    assert diagnosis.level == "error"
    assert diagnosis.found.endswith("and they are not those of NVML: torch alone has 2222, NVML alone 1111")
    diagnosis = bad(doctor.torch_agrees(machine(CARD, SECOND), torch_with(CARD)))
    assert diagnosis.found.endswith("torch alone has none, NVML alone 2222")


def test_torch_sees_gpus_and_nvml_none() -> None:
    """Runs would work, but nothing could watch the card."""
    diagnosis = bad(doctor.torch_agrees(machine(nvml_remedy="mend it"), torch_with(CARD)))
    assert (diagnosis.level, diagnosis.remedy) == ("warning", "mend it")
    assert "NVML none: neither other processes nor the driver's memory can be watched" in diagnosis.found


@pytest.mark.parametrize(
    ("changes", "found", "remedy"),
    [
        ({"cuda_build": None}, "this is a build without CUDA", "install a CUDA build of torch"),
        (
            {"cuda_build": "14.1"},
            "it is built for CUDA 14.1, and the driver is too old: 580.65.06 supports 13.0",
            "update the driver, or install a torch built for CUDA 13",
        ),
        ({"cuda_error": "RuntimeError: device unavailable"}, "RuntimeError: device unavailable", "reboot"),
        ({"cuda_build": "13.2"}, "it gives no reason", "check CUDA_VISIBLE_DEVICES"),
    ],
)
def test_torch_sees_no_gpu_although_nvml_does(changes: dict[str, Any], found: str, remedy: str) -> None:
    """A build without CUDA, an old driver and everything else are told apart."""
    diagnosis = bad(doctor.torch_agrees(machine(CARD), torch_with(**changes)))
    assert diagnosis.level == "error"
    assert "sees no GPU, NVML has 1: " in diagnosis.found
    assert found in diagnosis.found
    assert remedy in diagnosis.remedy


def test_a_driver_too_old_for_the_default_wheels_is_told_the_least_version() -> None:
    """torch's default wheels are built for CUDA 13, which needs driver 580."""
    old = dataclasses.replace(CARD, driver_version="570.124.06")
    diagnosis = bad(doctor.torch_agrees(machine(old, driver_cuda="12.8"), torch_with()))
    assert "built for CUDA 13.0, and the driver is too old: 570.124.06 supports 12.8" in diagnosis.found
    assert diagnosis.remedy == "update the driver to 580 or newer, or install a torch built for CUDA 12"


@pytest.mark.parametrize(
    ("version", "capability", "told"),
    [
        ("2.13.0+cu130", "9.0", True),
        ("2.11.1", "9.0", True),
        ("2.10.0", "9.0", False),
        ("2.14.0.dev20261001", "9.0", False),
        ("2.13.0+cu130", "8.0", False),
        ("unknown", "9.0", False),
    ],
)
def test_cudnn_attention_that_returns_nan(version: str, capability: str, told: bool) -> None:
    """Only on compute capability 9.0, and with the versions of torch that have the bug."""
    facts = torch_with(CARD, torch=version)
    facts["devices"][0]["compute_capability"] = capability
    found = list(doctor.cudnn_attention(facts))
    assert bool(found) is told
    if told:
        assert "196678" in found[0].found
        assert "torch.backends.cuda.enable_cudnn_sdp(False)" in found[0].remedy
    assert list(doctor.cudnn_attention("it hung")) == []


def test_torch_without_gpus_on_a_machine_without() -> None:
    """That is as it should be."""
    assert only(doctor.torch_agrees(machine(), torch_with())) == ok("torch", "2.11.0+cu130 sees no GPU, as NVML does")


def test_torch_that_gives_no_answer() -> None:
    """A dead child and a broken install are errors, and then bitsandbytes is not blamed."""
    diagnosis = bad(doctor.torch_agrees(machine(CARD), "it hung"))
    assert (diagnosis.level, diagnosis.found) == ("error", "it hung")
    broken = {"torch": None, "error": "ImportError: libcudart"}
    assert bad(doctor.torch_agrees(machine(CARD), broken)).found == "cannot be imported: ImportError: libcudart"
    assert list(doctor.bitsandbytes_fits("it hung")) == list(doctor.bitsandbytes_fits(broken)) == []


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"version": None, "error": "ImportError: no"}, "cannot be imported: ImportError: no"),
        ({"cuda_binary_fits": False}, "0.50.2 has no binary for torch's CUDA 13.0"),
        ({"cuda_binary_fits": False, "error": "not found"}, "0.50.2 has no binary for torch's CUDA 13.0 (not found)"),
        ({"native_library": None, "error": "no file"}, "0.50.2 could not load its native library: no file"),
    ],
)
def test_bitsandbytes_that_does_not_fit(changes: dict[str, Any], found: str) -> None:
    """Each way in which 4-bit runs would fail later is found now."""
    facts = torch_with(CARD)
    diagnosis = bad(doctor.bitsandbytes_fits({**facts, "bitsandbytes": {**facts["bitsandbytes"], **changes}}))
    assert (diagnosis.level, diagnosis.found) == ("error", found)


def test_bitsandbytes_that_fits() -> None:
    """Its version and the library that was loaded."""
    assert only(doctor.bitsandbytes_fits(torch_with(CARD))) == ok(
        "bitsandbytes", "0.50.2 with libbitsandbytes_cuda130.so"
    )


# Beside the GPUs.


def test_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing ones are an error, but the suite itself need not be installed."""
    monkeypatch.setattr(doctor, "distribution_version", lambda name: None)
    whole = only(doctor.libraries(machine(versions={**VERSIONS, "tunecheck": None})))
    assert whole == ok("libraries", "torch 2.13.0, transformers 5.24.0, peft 0.21.2, accelerate 1.15.0")
    diagnosis = bad(doctor.libraries(machine(versions={**VERSIONS, "peft": None, "bitsandbytes": None})))
    assert diagnosis == error("libraries", "not installed: peft, bitsandbytes", TRAIN_EXTRA)


def test_a_hub_without_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the wheel alone is installed: doctor has to say what is missing."""
    monkeypatch.setattr(doctor, "distribution_version", lambda name: None)
    monkeypatch.setattr("huggingface_hub.is_offline_mode", lambda: pytest.fail("imports the client"))
    diagnosis = bad(doctor.hub())
    assert diagnosis == warning("hub", "not asked: huggingface-hub is not installed", TRAIN_EXTRA)


def test_deprecated_pynvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell package is named with the way out."""
    monkeypatch.setattr(doctor, "distribution_version", lambda name: "13.0.1" if name == "pynvml" else None)
    diagnosis = bad(doctor.libraries(machine()))
    assert (diagnosis.level, diagnosis.topic) == ("warning", "pynvml")
    assert "the deprecated package pynvml 13.0.1 is installed" in diagnosis.found
    assert "pip uninstall pynvml" in diagnosis.remedy


@pytest.mark.parametrize(
    ("flag", "text"),
    [(True, "native bf16"), (False, "no native bf16 (AVX512-BF16, AMX): runs on the CPU use fp32"), (None, "unknown")],
)
def test_precision_of_the_cpu(flag: bool | None, text: str) -> None:
    """What `precision: auto` will mean on this processor."""
    cpu, memory = doctor.processor(machine(cpu=dataclasses.replace(CPU, bf16=flag)))
    assert cpu.level == "ok"
    assert cpu.found.startswith("Fast 9000, 2 of 8 logical cores usable, ")
    assert cpu.found.endswith(text)
    assert memory == ok("memory", "8 GiB of 16 GiB RAM available")


@pytest.mark.parametrize(
    ("space", "level", "found"),
    [
        (Disk(free_bytes=4 * GIB, free_inodes=None), "warning", "4 GiB free, 5 GiB are recommended"),
        (Disk(free_bytes=50 * GIB, free_inodes=3), "error", "3 inodes left, 1000 are needed"),
        (Disk(free_bytes=None, free_inodes=None), "warning", "its free space cannot be read"),
        (Disk(free_bytes=0, free_inodes=None, writable=False), "error", "cannot write there"),
    ],
)
def test_disk_of_the_cache(space: Disk, level: str, found: str) -> None:
    """Little room, no inodes and a folder that cannot be read."""
    diagnosis = bad(doctor.disk(machine(cache_disk=space)))
    assert (diagnosis.level, diagnosis.topic, diagnosis.found) == (level, "cache disk", found)
    assert "TUNECHECK_CACHE" in diagnosis.remedy


def test_disk_of_the_work_folder() -> None:
    """It needs less than the cache."""
    assert all(line.level == "ok" for line in doctor.disk(machine(work_disk=Disk(free_bytes=GIB, free_inodes=None))))
    diagnosis = bad(doctor.disk(machine(work_disk=Disk(free_bytes=GIB - 1, free_inodes=None))))
    assert diagnosis.topic == "work disk"


def test_weights() -> None:
    """The default model is in the cache, or it is said how to get it."""
    assert doctor.weights(cached=True) == ok("weights", "cached: smollm2-135m")
    diagnosis = doctor.weights(cached=False)
    assert (diagnosis.level, diagnosis.found) == ("warning", "smollm2-135m is not in the cache")


def test_variables_that_distort() -> None:
    """A variable that is off is no warning."""
    variables = {"CUDA_LAUNCH_BLOCKING": "1", "NVIDIA_TF32_OVERRIDE": "0", "BNB_CUDA_VERSION": ""}
    diagnosis = bad(doctor.environment(machine(environment=variables)))
    assert diagnosis.topic == "CUDA_LAUNCH_BLOCKING"
    assert diagnosis.found == "is set to 1: every kernel launch blocks, so speeds are not meaningful"


# The hub.


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A process that may ask the hub, without a proxy."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(network.urllib.request, "getproxies", dict)
    return monkeypatch


def test_hub_that_answers_and_hub_that_refuses(online: pytest.MonkeyPatch) -> None:
    """One TCP connection decides; the endpoint's own port is used."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        online.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
        assert only(doctor.hub()) == ok("hub", "127.0.0.1 can be reached")
    network.hub_problem.cache_clear()
    diagnosis = bad(doctor.hub())
    assert diagnosis.level == "warning"
    assert diagnosis.found == f"hub unreachable (127.0.0.1:{port}: Connection refused)"


def test_hub_that_is_forbidden(online: pytest.MonkeyPatch) -> None:
    """Offline mode is respected and said: no connection is tried."""
    online.setattr(constants, "HF_HUB_OFFLINE", True)
    online.setattr(network, "connection_problem", lambda *address: pytest.fail("the hub was asked"))
    assert only(doctor.hub()) == ok("hub", "not asked: HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) is set")


@pytest.mark.parametrize("endpoint", ["hub.example", "https://hub.example:port", ""])
def test_hub_with_a_bad_address(online: pytest.MonkeyPatch, endpoint: str) -> None:
    """An endpoint that is no web address has words of its own."""
    online.setattr(constants, "ENDPOINT", endpoint)
    assert bad(doctor.hub()).found == "HF_ENDPOINT or the proxy before it is not a web address"


def test_hub_address(online: pytest.MonkeyPatch) -> None:
    """Default ports, and the proxy where there is one; a password in it is left out."""
    assert network.hub_address("https://hub.example") == ("hub.example", 443)
    online.setattr(network.urllib.request, "getproxies", lambda: {"https": "http://me:secret@proxy.example:3128"})
    online.setattr(network.urllib.request, "proxy_bypass", lambda host: False)
    assert network.hub_address("https://hub.example") == ("proxy.example", 3128)
    online.setattr(network.urllib.request, "getproxies", lambda: {"https": "proxy.example"})
    assert network.hub_address("https://hub.example") == ("proxy.example", 80)
    online.setattr(network.urllib.request, "proxy_bypass", lambda host: True)
    assert network.hub_address("https://hub.example") == ("hub.example", 443)


def test_silent_network_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that never answers does not hold the doctor up."""
    over = threading.Event()

    def never_answer(address: Any, timeout: float) -> Any:
        over.wait(30)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", never_answer)
    monkeypatch.setattr(network, "CONNECT_SECONDS", 0.1)
    assert network.connection_problem("hub.example", 443) == "no answer within 0.1 s"
    over.set()


def test_name_that_cannot_be_a_host() -> None:
    """It is a problem in words, not an exception in a thread."""
    assert "label" in (network.connection_problem("a" * 70 + ".example", 443) or "")


# All together.


def test_examine_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is looked at, in the order in which a person would mend it."""
    monkeypatch.setattr(doctor, "probe", lambda: machine(CARD))
    monkeypatch.setattr(doctor, "torch_view", lambda: torch_with(CARD))
    monkeypatch.setattr("huggingface_hub.is_offline_mode", lambda: True)
    diagnoses = doctor.examine(cached=True)
    topics = [
        "driver",
        "GPU 0",
        "card class",
        "torch",
        "bitsandbytes",
        "libraries",
        "CPU",
        "memory",
        "cache disk",
        "work disk",
    ]
    assert [diagnosis.topic for diagnosis in diagnoses] == [*topics, "weights", "hub"]
    assert {diagnosis.level for diagnosis in diagnoses} == {"ok"}


def test_lines_are_in_columns() -> None:
    """Level, topic, finding, and after an arrow the remedy."""
    assert format_diagnoses([ok("CPU", "fast"), warning("driver", "old", "update it")]) == (
        "ok       CPU     fast\nwarning  driver  old -> update it"
    )
    assert format_diagnoses([]) == ""
    assert format_diagnoses([error("hub", "gone", "wait")]) == "error    hub  gone -> wait"
