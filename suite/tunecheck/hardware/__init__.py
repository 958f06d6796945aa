"""Description of this machine. Reading it never imports torch and never initialises CUDA."""

import dataclasses
import os
import platform
import re
from pathlib import Path
from typing import Any

from tunecheck.core.paths import cache_folder
from tunecheck.hardware import host
from tunecheck.hardware.facts import Cpu, Disk, Git, Gpu, Hardware, NvmlState
from tunecheck.hardware.nvml import nvml_view

__all__ = ["Cpu", "Disk", "Git", "Gpu", "Hardware", "NvmlState", "look_again", "probe", "visible_devices"]

_UNORDERED = (
    "GPUs of different models are ordered fastest first by CUDA and by PCI bus by NVML, so which is first is "
    "unknown unless CUDA_DEVICE_ORDER=PCI_BUS_ID is set"
)


def probe() -> Hardware:
    """Return this machine as it is now, without a CUDA context and within NVML's timeout; unreadable facts are None."""
    ram_total_bytes, ram_available_bytes = host.read_ram()
    return Hardware(
        **_gpus(),
        cpu=host.read_cpu(),
        ram_total_bytes=ram_total_bytes,
        ram_available_bytes=ram_available_bytes,
        cache_disk=host.read_disk(cache_folder()),
        work_disk=host.read_disk(Path.cwd()),
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        kernel=platform.release(),
        versions={name: host.distribution_version(name) for name in host.DISTRIBUTIONS},
        git=host.read_git(),
        environment={name: os.environ[name] for name in host.ENVIRONMENT if name in os.environ},
    )


def look_again(hardware: Hardware) -> Hardware:
    """Return the same machine with its GPUs read again: much cheaper than probing all of it."""
    return dataclasses.replace(hardware, **_gpus())


def _gpus() -> dict[str, Any]:
    view, variable = nvml_view(), os.environ.get("CUDA_VISIBLE_DEVICES")
    visible, problem = None, None
    if view.gpus or view.nvml_state is NvmlState.WORKS:  # a fault of one GPU does not hide the others
        visible, problem = visible_devices(view.gpus, variable, os.environ.get("CUDA_DEVICE_ORDER"))
    return {**vars(view), "visible": visible, "visible_problem": problem}


def visible_devices(
    gpus: tuple[Gpu, ...], variable: str | None, order: str | None
) -> tuple[tuple[str, ...] | None, str | None]:
    """Return the UUIDs of the GPUs that CUDA_VISIBLE_DEVICES leaves visible, in CUDA's order, and what is wrong.

    NVML ignores that variable, so CUDA's rules are applied here: entries are indices, UUIDs or unique beginnings of
    UUIDs; the first entry that matches nothing ends the list; an entry given twice empties it; a GPU in MIG mode shows
    its first instance unless one is named. `order` is CUDA_DEVICE_ORDER. The UUIDs are None where indices may mean
    another GPU to CUDA than to NVML, and where MIG instances are named but cannot be listed. Where only the order is
    unknown, it is NVML's and the sentence says so.
    """
    by_speed = order in (None, "", "FASTEST_FIRST")  # CUDA's default; NVML counts by PCI bus
    unordered = by_speed and len({gpu.name for gpu in gpus}) > 1
    if variable is None:
        return tuple(uuid for gpu in gpus if (uuid := _shown(gpu)) is not None), _UNORDERED if unordered else None
    entries = [entry.strip() for entry in variable.split(",")]
    if unordered and any(_index(entry) is not None for entry in entries):
        return None, f"CUDA_VISIBLE_DEVICES={variable!r} uses indices, but {_UNORDERED}"
    unlisted = any(gpu.mig and gpu.mig_instances is None for gpu in gpus)
    if unlisted and any(entry.startswith("MIG-") for entry in entries):
        return None, f"CUDA_VISIBLE_DEVICES={variable!r} names a MIG instance, which the driver does not list here"
    found: list[str] = []
    for position, entry in enumerate(entries, start=1):
        if (uuid := _match(entry, gpus)) is None:
            if entry in ("", "-1") and position == len(entries):  # the usual ways to say "none" and "no more"
                return tuple(found), None
            known = ", ".join(f"{gpu.index} = {gpu.uuid}" for gpu in gpus) or "none"
            named = f"entry {position} of CUDA_VISIBLE_DEVICES, {entry!r}, does not identify one GPU or MIG instance"
            return tuple(found), f"{named}, so CUDA ignores it and all after it; the GPUs are: {known}"
        if uuid in found:
            return (), f"CUDA_VISIBLE_DEVICES={variable!r} names a GPU twice, so CUDA shows none"
        found.append(uuid)
    return tuple(found), None


def _index(entry: str) -> int | None:
    return int(entry) if re.fullmatch(r"\+?[0-9]+", entry) else None


def _shown(gpu: Gpu) -> str | None:
    """Return what a process sees of this GPU: the GPU, its first MIG instance, or None when it has no instance."""
    return gpu.uuid if gpu.mig_instances is None else gpu.mig_instances[0].uuid if gpu.mig_instances else None


def _match(entry: str, gpus: tuple[Gpu, ...]) -> str | None:
    if (index := _index(entry)) is not None:
        return next((_shown(gpu) for gpu in gpus if gpu.index == index), None)
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    shown = {gpu.uuid: _shown(gpu) for gpu in gpus}
    shown |= {instance.uuid: instance.uuid for gpu in gpus for instance in gpu.mig_instances or ()}
    matches = [uuid for name, uuid in shown.items() if name.startswith(entry)]
    return matches[0] if len(matches) == 1 else None
