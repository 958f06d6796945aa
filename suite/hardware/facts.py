"""What a machine is, as frozen data. What could not be read is None, never a guess."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast


class NvmlState(StrEnum):
    """How far NVML, the driver's management library, could be used."""

    WORKS = "works"
    NO_LIBRARY = "no_library"
    """libnvidia-ml is not there, nor a device: a machine without an NVIDIA GPU."""
    NO_UTILITIES = "no_utilities"
    """libnvidia-ml is not there although a device is: a container without the driver's utilities."""
    DRIVER_NOT_LOADED = "driver_not_loaded"
    VERSION_MISMATCH = "version_mismatch"
    GPU_LOST = "gpu_lost"
    NO_PERMISSION = "no_permission"
    NO_BINDINGS = "no_bindings"
    """The Python package nvidia-ml-py is missing or cannot be imported."""
    SHADOWED = "shadowed"
    """The deprecated package pynvml stands in front of nvidia-ml-py."""
    HUNG = "hung"
    """NVML was asked and did not answer in time."""
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that computes on a GPU, as the driver knows it: inside a container its pid may be one of the host."""

    pid: int
    used_bytes: int | None
    name: str | None
    """Name of the executable without its path and arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """One slice of a GPU in MIG mode: what CUDA shows to a process instead of the whole card."""

    uuid: str
    name: str | None
    total_bytes: int | None
    free_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as NVML describes it."""

    index: int
    """NVML's index; CUDA's may differ. Match by `uuid`."""
    uuid: str
    name: str | None
    total_bytes: int | None
    free_bytes: int | None
    driver_version: str | None
    compute_capability: str | None
    """Such as "9.0"."""
    bf16: bool | None
    """True from compute capability 8.0 on, which computes bfloat16 natively."""
    memory_by_process: tuple[GpuProcess, ...] | None
    """None when the driver does not tell; an empty tuple when nobody computes on it."""
    mig: bool | None
    mig_instances: tuple[MigInstance, ...] | None
    """None unless the GPU is in MIG mode and tells its instances."""
    compute_mode: str | None
    """default, exclusive_thread, prohibited or exclusive_process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The processor and how much of it this process may use."""

    model: str | None
    physical_cores: int | None
    logical_cores: int | None
    usable_cores: int | None
    """Cores left by the affinity mask and by the CPU quota of the control group: whole ones, at least 1."""
    avx512_bf16: bool | None
    amx_bf16: bool | None
    arm_bf16: bool | None

    @property
    def bf16(self) -> bool | None:
        """True when the processor multiplies bfloat16 natively; None when its flags could not be read."""
        flags = (self.avx512_bf16, self.amx_bf16, self.arm_bf16)
        return None if None in flags else any(flags)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """What is left for this user on the file system of a folder."""

    free_bytes: int | None
    free_inodes: int | None
    """None on file systems that have no fixed number of them."""
    writable: bool = True
    """Whether this user can make a file there; how much is free tells nothing where he cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Git:
    """The checkout that the suite runs from."""

    commit: str
    dirty: bool
    """True when a tracked file differs from the commit or an unignored file is not in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """This machine at one moment."""

    gpus: tuple[Gpu, ...]
    """All that NVML lists, whatever CUDA_VISIBLE_DEVICES says."""
    visible: tuple[str, ...] | None
    """UUIDs of the GPUs and MIG instances that CUDA will show, in its order; None when that cannot be told."""
    visible_problem: str | None
    """What is wrong with CUDA_VISIBLE_DEVICES, or why `visible` or its order cannot be told; None when all is well."""
    nvml_state: NvmlState
    nvml_problem: str | None
    """None when NVML works, else what happened, in a sentence."""
    nvml_remedy: str | None
    """What to do about it."""
    driver_cuda: str | None
    """Newest CUDA version that the driver carries out, such as "13.0"."""
    cpu: Cpu
    ram_total_bytes: int | None
    """The machine's, or the limit of the control group when that is less."""
    ram_available_bytes: int | None
    cache_disk: Disk
    """Of the folder where models are cached."""
    work_disk: Disk
    """Of the current folder."""
    python: str
    platform: str
    kernel: str
    versions: dict[str, str | None]
    """Installed distributions by name; None when not installed."""
    git: Git | None
    """None outside a checkout."""
    environment: dict[str, str]
    """Environment variables that are set and can change a result."""

    @property
    def visible_gpus(self) -> tuple[Gpu, ...]:
        """What CUDA will show, in its order, a MIG instance with its own name and memory. Empty when unknown."""
        devices = {device.uuid: device for gpu in self.gpus for device in (gpu, *_slices(gpu))}
        return tuple(devices[uuid] for uuid in self.visible or ())

    def to_json(self) -> dict[str, Any]:
        """All fields as plain JSON types."""
        return cast(dict[str, Any], json.loads(json.dumps(dataclasses.asdict(self))))


def _slices(gpu: Gpu) -> list[Gpu]:
    return [
        dataclasses.replace(
            gpu,
            uuid=instance.uuid,
            name=instance.name or gpu.name,
            total_bytes=instance.total_bytes,
            free_bytes=instance.free_bytes,
            memory_by_process=None,  # the driver tells those of the whole card
            mig_instances=None,
        )
        for instance in gpu.mig_instances or ()
    ]
