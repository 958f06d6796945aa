"""What the machine is: NVML through a fake driver with the real error classes, and CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_nvml import GIB, UUIDS, answer, card, error, fake_pynvml

from tunecheck import hardware
from tunecheck.core import helper
from tunecheck.core.trace import spelled
from tunecheck.hardware import NvmlState, host, nvml, probe, visible_devices
from tunecheck.hardware.facts import Gpu, NvmlView
from tunecheck.hardware.nvml import read_nvml


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a fake in the place of the bindings, with no CUDA variable set."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    monkeypatch.setattr(nvml, "library_loads", lambda: False)  # a helper process would see the real bindings

    def put(*cards: Any, **system: Any) -> Any:
        module = fake_pynvml(*cards, **system)
        monkeypatch.setitem(sys.modules, "pynvml", module)
        return module

    return put


def test_one_gpu_is_read_whole_and_nvml_is_left(install: Any) -> None:
    """Every field comes from its NVML call, and the driver is shut down again."""
    module = install(card())
    machine = probe()
    assert machine.gpus == (
        Gpu(
            index=0,
            uuid=UUIDS[0],
            name="NVIDIA H200",
            total_bytes=141 * GIB,
            free_bytes=140 * GIB,
            driver_version="580.65.06",
            compute_capability="9.0",
            bf16=True,
            memory_by_process=(),
            mig=False,
            mig_instances=None,
            compute_mode="default",
        ),
    )
    assert (machine.nvml_state, machine.nvml_problem, machine.nvml_remedy) == (NvmlState.WORKS, None, None)
    assert machine.driver_cuda == "13.0"
    assert module.shutdowns == 1


def test_no_gpu_and_two_gpus(install: Any) -> None:
    """NVML may work and list none; two are listed in its order."""
    install()
    machine = probe()
    assert (machine.gpus, machine.visible, machine.nvml_problem) == ((), (), None)
    install(card(0), card(1))
    machine = probe()
    assert [(gpu.index, gpu.uuid) for gpu in machine.gpus] == list(enumerate(UUIDS))
    assert machine.visible == UUIDS
    assert machine.visible_gpus == machine.gpus


@pytest.mark.parametrize(
    ("code", "state", "sentence"),
    [
        (4, NvmlState.NO_PERMISSION, "this user has no permission to use the NVIDIA driver"),
        (9, NvmlState.DRIVER_NOT_LOADED, "an NVIDIA driver is installed, but its kernel module is not loaded"),
        (12, NvmlState.NO_LIBRARY, "no NVIDIA driver is installed"),
        (15, NvmlState.GPU_LOST, "the GPU is lost: it has fallen off the bus or does not answer"),
        (16, NvmlState.GPU_LOST, "the GPU needs a reset before it can be used"),
        (18, NvmlState.VERSION_MISMATCH, "the loaded NVIDIA driver and its library are of different versions"),
        (999, NvmlState.OTHER, "NVML answers with error 999 (Unknown Error)"),
    ],
)
def test_each_error_of_the_driver_has_its_sentence(install: Any, code: int, state: NvmlState, sentence: str) -> None:
    """A driver that cannot be entered gives a state, a sentence and a remedy, and no guess at GPUs."""
    install(card(), init=error(code))
    machine = probe()
    assert machine.nvml_state is state
    assert sentence in (machine.nvml_problem or "")
    assert machine.nvml_remedy
    assert (machine.gpus, machine.visible, machine.visible_gpus) == ((), None, ())


@pytest.mark.parametrize("file", [str(file) for file in nvml.DEVICES])
def test_missing_library_beside_a_device_means_a_container(monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    """With a device node there is a driver, only its utilities are not in the container."""
    monkeypatch.setattr(Path, "exists", lambda path: str(path) == file)
    fault = nvml.describe(error(12))
    assert fault.nvml_state is NvmlState.NO_UTILITIES
    assert fault.nvml_problem == "an NVIDIA device exists, but the NVML library was not found"
    assert "NVIDIA_DRIVER_CAPABILITIES" in fault.nvml_remedy


def test_failure_after_the_start_still_leaves_nvml(install: Any) -> None:
    """An error in the count of GPUs is reported, and NVML is shut down all the same."""
    module = install(card(), count=error(18))
    assert read_nvml().nvml_state is NvmlState.VERSION_MISMATCH
    assert module.shutdowns == 1


def test_refused_shutdown_keeps_what_was_read(install: Any) -> None:
    """A driver that dies at the very end does not take the answers with it."""
    module = install(card())
    module.nvmlShutdown = lambda: answer(error(15))
    assert [gpu.uuid for gpu in read_nvml().gpus] == [UUIDS[0]]


def test_lost_gpu_does_not_hide_the_other(install: Any) -> None:
    """The one that does not say who it is is named in the problem; the other is read."""
    install(error(15), card(1))
    machine = probe()
    assert machine.nvml_state is NvmlState.GPU_LOST
    assert machine.nvml_problem == "GPU 0: the GPU is lost: it has fallen off the bus or does not answer"
    assert [gpu.index for gpu in machine.gpus] == [1]
    assert machine.visible == (UUIDS[1],)


def test_gpu_lost_while_it_is_read(install: Any) -> None:
    """Fields read after the loss are None, and the loss is told once."""
    install(card(nvmlDeviceGetMemoryInfo=error(15), nvmlDeviceGetComputeMode=error(15)))
    view = read_nvml()
    assert view.gpus[0].total_bytes is None
    assert view.nvml_problem == "GPU 0: the GPU is lost: it has fallen off the bus or does not answer"


@pytest.mark.parametrize(
    ("function", "fields"),
    [
        ("nvmlDeviceGetName", ["name"]),
        ("nvmlDeviceGetMemoryInfo", ["total_bytes", "free_bytes"]),
        ("nvmlDeviceGetCudaComputeCapability", ["compute_capability", "bf16"]),
        ("nvmlDeviceGetMigMode", ["mig", "mig_instances"]),
        ("nvmlDeviceGetComputeMode", ["compute_mode"]),
        ("nvmlDeviceGetComputeRunningProcesses", ["memory_by_process"]),
    ],
)
def test_not_supported_is_none_and_no_problem(install: Any, function: str, fields: list[str]) -> None:
    """What a card does not tell is neither a guess nor a fault."""
    install(card(**{function: error(3)}))
    view = read_nvml()
    assert [getattr(view.gpus[0], field) for field in fields] == [None] * len(fields)
    assert view.nvml_problem is None


def test_function_that_older_bindings_lack_is_none(install: Any) -> None:
    """Bindings without a function are no fault of the machine."""
    module = install(card())
    del module.nvmlDeviceGetMigMode
    view = read_nvml()
    assert (view.nvml_state, view.gpus[0].mig) == (NvmlState.WORKS, None)


def test_driver_that_does_not_tell_its_versions(install: Any) -> None:
    """Unknown versions are None."""
    install(card(), driver=error(3), cuda=error(13))
    view = read_nvml()
    assert (view.gpus[0].driver_version, view.driver_cuda) == (None, None)


@pytest.mark.parametrize(("capability", "bf16"), [((7, 5), False), ((8, 0), True), ((12, 0), True)])
def test_bf16_from_compute_capability(install: Any, capability: tuple[int, int], bf16: bool) -> None:
    """bf16 is native from 8.0 on, compared as numbers."""
    install(card(nvmlDeviceGetCudaComputeCapability=capability))
    assert read_nvml().gpus[0].bf16 is bf16


def test_unknown_compute_mode_is_named(install: Any) -> None:
    """A mode that this version does not know is told by its number."""
    install(card(nvmlDeviceGetComputeMode=7))
    assert read_nvml().gpus[0].compute_mode == "unknown mode 7"


def test_processes_without_memory_or_name(install: Any) -> None:
    """In a container the driver may tell neither memory nor name; an argument of a command line is never kept."""
    processes = [SimpleNamespace(pid=7, usedGpuMemory=None), SimpleNamespace(pid=8, usedGpuMemory=3 * GIB)]
    install(card(nvmlDeviceGetComputeRunningProcesses=processes), names={8: "/opt/bin/python3 --token hf_secret"})
    first, second = read_nvml().gpus[0].memory_by_process or ()
    assert (first.pid, first.used_bytes, first.name) == (7, None, None)
    assert (second.pid, second.used_bytes, second.name) == (8, 3 * GIB, "python3")


def test_process_with_an_empty_name(install: Any) -> None:
    """An empty name is no name."""
    processes = [SimpleNamespace(pid=7, usedGpuMemory=1)]
    install(card(nvmlDeviceGetComputeRunningProcesses=processes), names={7: ""})
    assert (read_nvml().gpus[0].memory_by_process or ())[0].name is None


def mig_card() -> dict[str, Any]:
    """A card in MIG mode with one instance in the second of two slots."""
    memory = SimpleNamespace(total=18 * GIB, free=17 * GIB)
    instance = {
        "nvmlDeviceGetUUID": "MIG-5555",
        "nvmlDeviceGetName": "NVIDIA H200 MIG 1g.18gb",
        "nvmlDeviceGetMemoryInfo": memory,
    }
    return card(nvmlDeviceGetMigMode=[1, 1], nvmlDeviceGetMaxMigDeviceCount=2, instances=[error(6), instance])


def test_mig_instance_is_what_cuda_shows(install: Any) -> None:
    """Under MIG the visible device is the instance, with the instance's memory."""
    install(mig_card())
    machine = probe()
    assert machine.gpus[0].mig is True
    assert machine.visible == ("MIG-5555",)
    assert [(gpu.uuid, gpu.total_bytes, gpu.free_bytes) for gpu in machine.visible_gpus] == [
        ("MIG-5555", 18 * GIB, 17 * GIB)
    ]


def test_mig_instances_that_are_not_told(install: Any) -> None:
    """Unreadable instances are None, and a MIG id in the variable is then undecided."""
    install(card(nvmlDeviceGetMigMode=[1, 1], nvmlDeviceGetMaxMigDeviceCount=error(4)))
    gpus = read_nvml().gpus
    assert gpus[0].mig_instances is None
    visible, problem = visible_devices(gpus, "MIG-5555", None)
    assert visible is None
    assert "which the driver does not list here" in (problem or "")


def test_old_pynvml_package_is_refused(install: Any) -> None:
    """pynvml 11 is a folder of modules under the same name."""
    install(card()).__file__ = "/site-packages/pynvml/__init__.py"
    view = read_nvml()
    assert view.nvml_state is NvmlState.SHADOWED
    assert view.nvml_problem is not None
    assert view.nvml_problem.startswith("the deprecated pynvml package shadows nvidia-ml-py")
    assert "pip uninstall pynvml" in (view.nvml_remedy or "")


def test_missing_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without nvidia-ml-py the problem says so."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    view = read_nvml()
    assert view.nvml_state is NvmlState.NO_BINDINGS
    assert "nvidia-ml-py cannot be imported (ModuleNotFoundError" in (view.nvml_problem or "")


def test_real_bindings_on_this_machine() -> None:
    """The real library answers with a GPU, or with the sentence of a machine without a driver."""
    view = read_nvml()
    if view.nvml_state is NvmlState.WORKS:
        assert view.nvml_problem is None
        assert all(gpu.uuid.startswith("GPU-") and gpu.driver_version for gpu in view.gpus)
    else:
        assert view.nvml_state in (NvmlState.NO_LIBRARY, NvmlState.NO_UTILITIES, NvmlState.DRIVER_NOT_LOADED)
        assert view.nvml_problem
        assert view.gpus == ()


BINDINGS = """
class NVMLError(Exception):
    value = 999
def nvmlInit():
    {init}
def nvmlShutdown():
    pass
def nvmlDeviceGetCount():
    return 0
def nvmlSystemGetDriverVersion():
    return "580.65.06"
"""


def helper_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, init: str, seconds: float = 20) -> NvmlView:
    """What the helper process tells with bindings that do this when NVML is entered."""
    (tmp_path / "pynvml.py").write_text(BINDINGS.format(init=init))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(nvml, "library_loads", lambda: True)
    monkeypatch.setattr(nvml, "TIMEOUT_SECONDS", seconds)
    return nvml.nvml_view()


def told_by(code: str) -> NvmlView:
    """What is made of a helper process that executes this code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvml, "library_loads", lambda: True)
        patch.setattr(helper, "command_for", lambda *words: [sys.executable, "-S", "-c", code])
        return nvml.nvml_view()


def test_the_helper_process_tells_the_same_as_the_reader(install: Any) -> None:
    """Every type comes back from JSON as it was: the view crosses the process boundary whole."""
    install(card(nvmlDeviceGetComputeRunningProcesses=[SimpleNamespace(pid=8, usedGpuMemory=GIB)]), mig_card())
    view = read_nvml()
    assert len(view.gpus) == 2
    printed = json.dumps(dataclasses.asdict(view))
    assert told_by(f"print({printed!r})") == view


def test_an_nvml_that_hangs_does_not_hang_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that hung is no probe that failed: another state, another sentence."""
    view = helper_with(tmp_path, monkeypatch, "import time; time.sleep(60)", seconds=1.5)
    assert (view.nvml_state, view.gpus) == (NvmlState.HUNG, ())
    assert view.nvml_problem == "NVML did not answer within 1.5 s and was killed"
    assert "reboot" in (view.nvml_remedy or "")


def test_an_nvml_that_crashes_is_a_failed_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal is in the sentence, and the session lives."""
    view = helper_with(tmp_path, monkeypatch, "import os; os.kill(os.getpid(), 11)")
    assert view.nvml_state is NvmlState.OTHER
    assert view.nvml_problem == "the process for NVML was killed by SIGSEGV"
    assert view.nvml_remedy


def test_a_helper_of_another_version_is_a_failed_probe() -> None:
    """What it prints is not taken on trust."""
    view = told_by("""print('{"nvml_state": "great"}')""")
    assert view.nvml_state is NvmlState.OTHER
    assert "great" in (view.nvml_problem or "")


def test_the_real_helper_answers_as_the_bindings_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module itself runs as the helper process."""
    view = helper_with(tmp_path, monkeypatch, "pass")
    assert view == NvmlView(nvml_state=NvmlState.WORKS)


def test_without_a_library_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a driver pays nothing for the care."""
    monkeypatch.setattr(nvml, "LIBRARY", "libnothing-of-this-name.so.1")
    monkeypatch.setattr(nvml, "ask", lambda *words, **more: pytest.fail("a helper was started"))
    assert nvml.nvml_view() == read_nvml()


def gpu(number: int, **changes: Any) -> Gpu:
    """A GPU as read, for the rules of CUDA_VISIBLE_DEVICES."""
    fields: dict[str, Any] = dict.fromkeys(Gpu.__dataclass_fields__)
    return Gpu(**{**fields, "index": number, "uuid": UUIDS[number], "name": "NVIDIA H200", **changes})


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, UUIDS),
        ("", ()),
        ("-1", ()),
        ("0", UUIDS[:1]),
        ("1,0", UUIDS[::-1]),
        (" 1 , 0 ", UUIDS[::-1]),
        ("0,-1", UUIDS[:1]),
        (UUIDS[1], UUIDS[1:]),
        ("GPU-ab12", UUIDS[:1]),
        ("GPU-ab99,GPU-ab12", UUIDS[::-1]),
    ],
)
def test_visible_devices(variable: str | None, expected: tuple[str, ...]) -> None:
    """Indices and UUIDs, whole or abbreviated, in the caller's order, and the usual ways to say none."""
    assert visible_devices((gpu(0), gpu(1)), variable, None) == (expected, None)


@pytest.mark.parametrize(
    ("variable", "expected", "entry"),
    [
        ("0,7,1", UUIDS[:1], "entry 2 of CUDA_VISIBLE_DEVICES, '7'"),
        ("0,-1,1", UUIDS[:1], "entry 2 of CUDA_VISIBLE_DEVICES, '-1'"),
        ("GPU-ab", (), "entry 1 of CUDA_VISIBLE_DEVICES, 'GPU-ab'"),
        ("GPU-ffff", (), "entry 1 of CUDA_VISIBLE_DEVICES, 'GPU-ffff'"),
        ("MIG-5555", (), "entry 1 of CUDA_VISIBLE_DEVICES, 'MIG-5555'"),
        ("cuda:0", (), "entry 1 of CUDA_VISIBLE_DEVICES, 'cuda:0'"),
    ],
)
def test_entry_that_matches_nothing_ends_the_list(variable: str, expected: tuple[str, ...], entry: str) -> None:
    """CUDA stops at the first bad entry without a word; here the entry is named, with the GPUs that exist."""
    visible, problem = visible_devices((gpu(0), gpu(1)), variable, None)
    assert visible == expected
    assert problem is not None
    assert problem.startswith(entry)
    assert f"0 = {UUIDS[0]}, 1 = {UUIDS[1]}" in problem


def test_gpu_named_twice_shows_none() -> None:
    """CUDA empties the list, even when the two names differ."""
    visible, problem = visible_devices((gpu(0), gpu(1)), "0,GPU-ab12", None)
    assert visible == ()
    assert problem == "CUDA_VISIBLE_DEVICES='0,GPU-ab12' names a GPU twice, so CUDA shows none"


def test_indices_of_different_models_are_not_guessed() -> None:
    """CUDA counts the fastest first, NVML by bus: only PCI_BUS_ID or UUIDs make an index certain."""
    gpus = (gpu(0, name="NVIDIA T4"), gpu(1))
    visible, problem = visible_devices(gpus, "0", None)
    assert visible is None
    assert "CUDA_VISIBLE_DEVICES='0' uses indices, but GPUs of different models are ordered fastest" in (problem or "")
    assert visible_devices(gpus, "0", "PCI_BUS_ID") == (UUIDS[:1], None)
    assert visible_devices(gpus, "GPU-ab99", None) == (UUIDS[1:], None)
    visible, problem = visible_devices(gpus, None, None)
    assert visible == UUIDS
    assert "so which is first is unknown" in (problem or "")


def test_mig_ids_and_gpus_in_mig_mode() -> None:
    """An instance is named by its id or shown as the first of its GPU; a GPU without instances shows nothing."""
    instances = tuple(gpu(0, uuid=f"MIG-{n}00", mig=True) for n in (5, 6))
    gpus = (gpu(0, mig=True, mig_instances=instances), gpu(1, mig=True, mig_instances=()))
    assert visible_devices(gpus, "MIG-6", None) == (("MIG-600",), None)
    assert visible_devices(gpus, "0", None) == (("MIG-500",), None)
    assert visible_devices(gpus, UUIDS[0], None) == (("MIG-500",), None)
    assert visible_devices(gpus, None, None) == (("MIG-500",), None)
    assert visible_devices(gpus, "1", None)[0] == ()


def test_to_json_is_plain_and_complete(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only JSON types, every field, and the variables as they were."""
    install(card())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    payload = spelled(probe())
    assert json.loads(json.dumps(payload)) == payload
    assert set(payload) == set(hardware.Hardware.__dataclass_fields__)
    assert payload["nvml_state"] == "works"
    assert payload["visible"] == [UUIDS[0]]
    assert payload["environment"]["CUDA_VISIBLE_DEVICES"] == "0"
    assert payload["versions"]["nvidia-ml-py"] == host.distribution_version("nvidia-ml-py")


def test_probe_imports_no_torch() -> None:
    """A fresh process probes the machine and has not loaded torch."""
    code = "import sys; from tunecheck.hardware import probe; probe(); sys.exit('torch' in sys.modules)"
    root = Path(hardware.__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
