"""GPUs as NVML sees them. NVML needs no CUDA context: reading it costs no GPU memory and breaks no fork."""

import ctypes
import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any, cast

from tunecheck.core.evidence import CardProcess
from tunecheck.core.helper import HelperFailed, HelperHung, ask
from tunecheck.core.typed import MISFITS, build
from tunecheck.hardware.facts import Gpu, NvmlState, NvmlView

LIBRARY = "libnvidia-ml.so.1"
TIMEOUT_SECONDS = 20.0
"""Timeout: a healthy driver answers within a second; one that has to wake sleeping GPUs may take several."""

DEVICES = (Path("/dev/nvidiactl"), Path("/dev/nvhost-gpu"), Path("/dev/nvhost-ctrl-gpu"))
"""Device files, one of which exists where a kernel module drives an NVIDIA GPU; the last two are a Jetson's."""


def fault(state: NvmlState, problem: str, remedy: str) -> NvmlView:
    return NvmlView(nvml_state=state, nvml_problem=problem, nvml_remedy=remedy)


_ASK_THE_DRIVER = "run `nvidia-smi` and read the kernel log"
_REINSTALL = "run `pip install --force-reinstall nvidia-ml-py`"
_SHADOWED = fault(
    NvmlState.SHADOWED,
    "the deprecated pynvml package shadows nvidia-ml-py, whose module has the same name",
    f"run `pip uninstall pynvml`, then {_REINSTALL}",
)
_NO_LIBRARY = fault(
    NvmlState.NO_LIBRARY, "no NVIDIA driver is installed", "install it to use an NVIDIA GPU; the CPU needs none"
)
_NO_UTILITIES = fault(
    NvmlState.NO_UTILITIES,
    "an NVIDIA device exists, but the NVML library was not found",
    'inside a container, request the driver capability "utility" (NVIDIA_DRIVER_CAPABILITIES=compute,utility); '
    "otherwise reinstall the driver",
)
_FAULTS = {
    4: fault(
        NvmlState.NO_PERMISSION,
        "this user has no permission to use the NVIDIA driver",
        "check the permissions of /dev/nvidia*, or the container's list of devices",
    ),
    9: fault(
        NvmlState.DRIVER_NOT_LOADED,
        "an NVIDIA driver is installed, but its kernel module is not loaded",
        "reboot, or reinstall the driver for the running kernel",
    ),
    15: fault(
        NvmlState.GPU_LOST,
        "the GPU is lost: it has fallen off the bus or does not answer",
        "search the kernel log for Xid and reboot; if it recurs, the GPU, its power supply or its slot is faulty",
    ),
    16: fault(
        NvmlState.GPU_LOST,
        "the GPU needs a reset before it can be used",
        "run `nvidia-smi --gpu-reset`, or reboot",
    ),
    18: fault(
        NvmlState.VERSION_MISMATCH,
        "the loaded NVIDIA driver and its library are of different versions, as after an update",
        "reboot or reload the kernel module; inside a container, restart it",
    ),
}
_NO_LIBRARY_CODE = 12
_UNTOLD_CODES = frozenset({2, 3, 4, 6, 13, 21, 22, 25, 26})
"""Codes of facts that this GPU or driver does not report, which is no fault: not of this kind of device (a MIG
instance), not supported, no permission, not found, function not found, no data, no ECC on a vGPU, other struct version,
deprecated."""
_COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}


def nvml_view() -> NvmlView:
    """Return NVML's view of this machine, as a helper process reads it within a timeout: a driver may hang."""
    if not library_loads():
        return read_nvml()
    try:
        told = ask("tunecheck.hardware.nvml:read_nvml", about="NVML", timeout_seconds=TIMEOUT_SECONDS)
        return cast(NvmlView, build(NvmlView, told))
    except HelperHung as error:
        remedy = "search the kernel log for Xid and reboot; until then `nvidia-smi` will hang too"
        return fault(NvmlState.HUNG, str(error), remedy)
    except (HelperFailed, *MISFITS) as error:
        return fault(NvmlState.OTHER, str(error), _ASK_THE_DRIVER)


def library_loads() -> bool:
    """Return whether an NVML library loads, which contacts no driver."""
    with suppress(OSError):
        ctypes.CDLL(LIBRARY)
        return True
    return False


def read_nvml() -> NvmlView:
    """Read NVML in this process and shut it down again, however long that takes. Never raises for its answers."""
    try:
        with warnings.catch_warnings():
            # The deprecated wrapper pynvml warns on import; the doctor names it with a remedy instead.
            warnings.simplefilter("ignore", FutureWarning)
            nvml: Any = importlib.import_module("pynvml")
    except Exception as error:  # the old package fails on import in many ways, SyntaxError among them
        problem = f"the Python package nvidia-ml-py cannot be imported ({type(error).__name__}: {error})"
        return fault(NvmlState.NO_BINDINGS, problem, _REINSTALL)
    # pynvml 11 and older is a folder of modules, nvidia-ml-py a single file.
    if PurePath(getattr(nvml, "__file__", None) or "").name == "__init__.py":
        return _SHADOWED
    try:
        with nvml_session(nvml):
            return _read(nvml)
    except nvml.NVMLError as error:
        return describe(error)


def has_device() -> bool:
    """Return whether a device file of an NVIDIA GPU exists, whatever NVML says."""
    return any(device.exists() for device in DEVICES)


def describe(error: Any) -> NvmlView:
    """Return what an NVMLError means for the machine."""
    code: int = error.value
    if code == _NO_LIBRARY_CODE:
        return _NO_UTILITIES if has_device() else _NO_LIBRARY
    return _FAULTS.get(code, fault(NvmlState.OTHER, f"NVML answers with error {code} ({error})", _ASK_THE_DRIVER))


@contextmanager
def nvml_session(nvml: Any) -> Iterator[None]:
    """Initialise NVML for the block and shut it down afterwards. Raises NVMLError when that fails."""
    nvml.nvmlInit()
    try:
        yield
    finally:
        # What was read is valid even if a failing driver refuses the shutdown.
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


@dataclass(slots=True)
class Reader:
    """Queries to NVML that return None for what it does not report, and collect real faults."""

    nvml: Any
    faults: list[NvmlView] = field(default_factory=list)

    def ask(self, function: str, *arguments: Any, about: str = "the driver") -> Any:
        """Return the answer; None when this GPU, driver or version of the bindings does not report it."""
        if (call := getattr(self.nvml, function, None)) is None:
            return None
        try:
            return call(*arguments)
        except getattr(self.nvml, "NVMLLibraryMismatchError", ()):  # the driver's library has an older version alone
            return None
        except self.nvml.NVMLError as error:
            if error.value not in _UNTOLD_CODES:
                self.blame(about, error)
            return None

    def blame(self, about: str, error: Any) -> None:
        """Record a fault, once for each thing it is about."""
        told = describe(error)
        if (named := replace(told, nvml_problem=f"{about}: {told.nvml_problem}")) not in self.faults:
            self.faults.append(named)


def _read(nvml: Any) -> NvmlView:
    reader = Reader(nvml)
    driver = reader.ask("nvmlSystemGetDriverVersion")
    cuda = reader.ask("nvmlSystemGetCudaDriverVersion_v2")
    gpus = [_gpu(reader, index, driver) for index in range(nvml.nvmlDeviceGetCount())]
    return NvmlView(
        nvml_state=reader.faults[0].nvml_state if reader.faults else NvmlState.WORKS,
        nvml_problem="; ".join(str(view.nvml_problem) for view in reader.faults) or None,
        nvml_remedy="; ".join(dict.fromkeys(str(view.nvml_remedy) for view in reader.faults)) or None,
        gpus=tuple(gpu for gpu in gpus if gpu is not None),
        driver_cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
    )


def _gpu(reader: Reader, index: int, driver_version: str | None) -> Gpu | None:
    """Return one GPU; None, with the fault recorded, for one that does not report its own UUID."""
    about = f"GPU {index}"
    try:
        handle = reader.nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = reader.nvml.nvmlDeviceGetUUID(handle)
    except reader.nvml.NVMLError as error:
        reader.blame(about, error)
        return None
    memory = reader.ask("nvmlDeviceGetMemoryInfo", handle, about=about)
    capability = reader.ask("nvmlDeviceGetCudaComputeCapability", handle, about=about)
    mig = reader.ask("nvmlDeviceGetMigMode", handle, about=about)
    mode = reader.ask("nvmlDeviceGetComputeMode", handle, about=about)
    gpu = Gpu(
        index=index,
        uuid=uuid,
        name=reader.ask("nvmlDeviceGetName", handle, about=about),
        total_bytes=getattr(memory, "total", None),
        free_bytes=getattr(memory, "free", None),
        driver_version=driver_version,
        compute_capability=None if capability is None else "{}.{}".format(*capability),
        bf16=None if capability is None else tuple(capability) >= (8, 0),
        memory_by_process=processes_of(reader, handle, about),
        mig=None if mig is None else bool(mig[0]),
        mig_instances=None,
        compute_mode=None if mode is None else _COMPUTE_MODES.get(mode, f"unknown mode {mode}"),
    )
    return replace(gpu, mig_instances=_mig_instances(reader, handle, gpu)) if gpu.mig else gpu


def processes_of(reader: Reader, handle: Any, about: str, kind: str = "Compute") -> tuple[CardProcess, ...] | None:
    """Return the processes that compute on a GPU, or draw (kind Graphics); None where the driver lists none."""
    if (processes := reader.ask(f"nvmlDeviceGet{kind}RunningProcesses", handle, about=about)) is None:
        return None
    draws = kind == "Graphics"
    found = [(process.pid, process.usedGpuMemory, _process_name(reader, process.pid)) for process in processes]
    return tuple(CardProcess(pid=pid, name=name, used_bytes=used, graphics=draws) for pid, used, name in found)


def _process_name(reader: Reader, pid: int) -> str | None:
    """Return the executable's name alone: arguments may contain a secret. None when not reported."""
    with suppress(reader.nvml.NVMLError, UnicodeDecodeError):
        words = str(reader.nvml.nvmlSystemGetProcessName(pid)).split()
        return PurePath(words[0]).name if words else None
    return None


def _mig_instances(reader: Reader, handle: Any, gpu: Gpu) -> tuple[Gpu, ...] | None:
    """Return the GPU's instances, each with its own name and memory; None where it does not list them."""
    about = f"GPU {gpu.index}"
    if (slots := reader.ask("nvmlDeviceGetMaxMigDeviceCount", handle, about=about)) is None:
        return None
    instances = []
    for slot in range(slots):
        instance = reader.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot, about=about)
        uuid = None if instance is None else reader.ask("nvmlDeviceGetUUID", instance, about=about)
        if uuid is None:  # a slot without an instance answers "not found"
            continue
        memory = reader.ask("nvmlDeviceGetMemoryInfo", instance, about=about)
        name = reader.ask("nvmlDeviceGetName", instance, about=about) or gpu.name
        total, free = getattr(memory, "total", None), getattr(memory, "free", None)
        # the driver lists the processes of the whole GPU
        instances.append(replace(gpu, uuid=uuid, name=name, total_bytes=total, free_bytes=free, memory_by_process=None))
    return tuple(instances)
