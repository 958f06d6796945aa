"""Description of this machine. Reading it never imports torch and never initialises CUDA."""

import dataclasses
import os
import platform
from pathlib import Path
from typing import Any

from tunecheck.core.paths import cache_folder
from tunecheck.hardware import host
from tunecheck.hardware.facts import Cpu, Disk, Git, Gpu, GpuProcess, Hardware, NvmlState
from tunecheck.hardware.nvml import nvml_view
from tunecheck.hardware.visible import visible_devices

__all__ = ["Cpu", "Disk", "Git", "Gpu", "GpuProcess", "Hardware", "NvmlState", "look_again", "probe"]


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
        versions=host.read_versions(),
        git=host.read_git(),
        environment=host.read_environment(os.environ),
    )


def look_again(hardware: Hardware) -> Hardware:
    """Return the same machine with its GPUs read again: much cheaper than probing all of it."""
    return dataclasses.replace(hardware, **_gpus())


def _gpus() -> dict[str, Any]:
    """Return the fields of Hardware that NVML tells."""
    view, variable = nvml_view(), os.environ.get("CUDA_VISIBLE_DEVICES")
    visible, problem = None, None
    if view.gpus or view.nvml_state is NvmlState.WORKS:  # a fault of one GPU does not hide the others
        visible, problem = visible_devices(view.gpus, variable, os.environ.get("CUDA_DEVICE_ORDER"))
    return {**vars(view), "visible": visible, "visible_problem": problem}
