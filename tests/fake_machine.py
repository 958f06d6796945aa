"""Made-up machines: two GPUs, a CPU, and a healthy machine with any of them."""

from __future__ import annotations

import dataclasses
from typing import Any

from tunecheck.hardware import Cpu, Disk, Gpu, Hardware, NvmlState

GIB = 1024**3
CARD = Gpu(
    index=0,
    uuid="GPU-1111",
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
)
SECOND = dataclasses.replace(CARD, index=1, uuid="GPU-2222")
CPU = Cpu(
    model="Fast 9000",
    physical_cores=4,
    logical_cores=8,
    usable_cores=2,
    bf16=False,
)
VERSIONS: dict[str, str | None] = {
    "torch": "2.13.0",
    "transformers": "5.24.0",
    "peft": "0.21.2",
    "accelerate": "1.15.0",
}


def machine(*cards: Gpu, **changes: Any) -> Hardware:
    """A healthy machine with these GPUs."""
    fields: dict[str, Any] = {
        "gpus": cards,
        "visible": tuple(card.uuid for card in cards),
        "visible_problem": None,
        "nvml_state": NvmlState.WORKS,
        "nvml_problem": None,
        "nvml_remedy": None,
        "driver_cuda": "13.0",
        "cpu": CPU,
        "ram_total_bytes": 16 * GIB,
        "ram_available_bytes": 8 * GIB,
        "cache_disk": Disk(free_bytes=100 * GIB, free_inodes=10**6),
        "work_disk": Disk(free_bytes=100 * GIB, free_inodes=None),
        "python": "3.11.7",
        "platform": "Linux x86_64",
        "kernel": "6.1",
        "versions": VERSIONS,
        "git": None,
        "environment": {},
    }
    return Hardware(**{**fields, **changes})
