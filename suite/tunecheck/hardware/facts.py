"""Description of a machine as frozen data. What could not be read is None, never a guess."""

from dataclasses import replace
from enum import StrEnum, auto

from tunecheck.core.evidence import CardProcess
from tunecheck.core.frozen import Frozen

NAME_BY_UUID = "name the GPUs by UUID, as `nvidia-smi -L` prints them"


class NvmlState(StrEnum):
    """Usability of NVML, the driver's management library."""

    WORKS = auto()
    NO_LIBRARY = auto()  # Neither libnvidia-ml nor a device exists: a machine without an NVIDIA GPU.
    NO_UTILITIES = auto()  # A device exists but libnvidia-ml does not: a container without the driver's utilities.
    DRIVER_NOT_LOADED = auto()
    VERSION_MISMATCH = auto()
    GPU_LOST = auto()
    NO_PERMISSION = auto()
    NO_BINDINGS = auto()
    SHADOWED = auto()
    HUNG = auto()
    OTHER = auto()


class Gpu(Frozen):
    """One GPU as NVML describes it."""

    index: int
    """NVML's index; CUDA's may differ. Match by `uuid`."""
    uuid: str
    name: str | None
    total_bytes: int | None
    free_bytes: int | None
    driver_version: str | None
    compute_capability: str | None
    """Major and minor version, such as "9.0"."""
    bf16: bool | None
    """Whether bfloat16 is native: from compute capability 8.0 on."""
    memory_by_process: tuple[CardProcess, ...] | None
    """Compute processes; None when the driver does not list them, empty when there are none."""
    mig: bool | None
    mig_instances: tuple["Gpu", ...] | None
    """Slices of the GPU that CUDA shows instead of it; None unless it is in MIG mode and lists them."""
    compute_mode: str | None
    """default, exclusive_thread, prohibited or exclusive_process."""
    cap_bytes: int | None = None
    """Memory that it counts as having, by --vram-cap; None for all of it."""


class Cpu(Frozen):
    """Processor, and the share of it that this process may use."""

    model: str | None
    physical_cores: int | None
    logical_cores: int | None
    usable_cores: int | None
    """Cores allowed by the affinity mask and the control group's CPU quota: whole ones, at least 1."""
    bf16: bool | None
    """Whether the processor has native bfloat16 products; None when its flags could not be read."""
    flags: str | None = None
    """Digest of the instruction sets that the kernel lists: with others, libraries take other kernels."""


class Disk(Frozen):
    """Space left for this user on the file system of a folder."""

    free_bytes: int | None
    free_inodes: int | None
    """None on file systems that have no fixed number of them."""
    writable: bool = True
    """Whether this user can create a file there; free space alone does not show it."""


class Git(Frozen):
    """Checkout that the suite runs from."""

    commit: str
    dirty: bool
    """Whether a tracked file differs from the commit or an unignored file is not in it."""


class NvmlView(Frozen):
    """Everything that NVML reported."""

    gpus: tuple[Gpu, ...] = ()
    """All GPUs that NVML lists, whatever CUDA_VISIBLE_DEVICES is."""
    nvml_state: NvmlState
    nvml_problem: str | None = None
    """What happened, in a sentence; None when NVML works."""
    nvml_remedy: str | None = None
    driver_cuda: str | None = None
    """Newest CUDA version that the driver supports, such as "13.0"."""


class Hardware(NvmlView):
    """This machine at one moment."""

    visible: tuple[str, ...] | None
    """UUIDs of the GPUs and MIG instances that CUDA will show, in its order; None when that is unknown."""
    visible_problem: str | None
    """Problem with CUDA_VISIBLE_DEVICES, or why `visible` or its order is unknown; None without one."""
    cpu: Cpu
    ram_total_bytes: int | None
    """Memory of the machine, or the limit of the control group when that is less."""
    ram_available_bytes: int | None
    cache_disk: Disk
    work_disk: Disk
    python: str
    platform: str
    kernel: str
    versions: dict[str, str | None]
    """Installed distributions by name; None when not installed."""
    git: Git | None
    environment: dict[str, str]
    vram_cap_bytes: int | None = None

    @property
    def visible_gpus(self) -> tuple[Gpu, ...]:
        """Return the GPUs that CUDA will show, in its order, MIG instances as GPUs of their own; empty when unknown."""
        devices = {device.uuid: device for gpu in self.gpus for device in (gpu, *(gpu.mig_instances or ()))}
        return tuple(replace(devices[uuid], cap_bytes=self.vram_cap_bytes) for uuid in self.visible or ())

    @property
    def usable_gpus(self) -> tuple[Gpu, ...]:
        return tuple(gpu for gpu in self.visible_gpus if gpu.compute_mode != "prohibited")
