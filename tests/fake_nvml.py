"""A fake of NVML's Python bindings: what it answers is a dict for each GPU."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pynvml

GIB = 1024**3
UUIDS = ("GPU-ab12cd34-0000-0000-0000-000000000001", "GPU-ab99ffff-0000-0000-0000-000000000002")


def card(number: int = 0, **answers: Any) -> dict[str, Any]:
    """What a fake H200 answers to each NVML function; an NVMLError is raised instead."""
    return {
        "nvmlDeviceGetUUID": UUIDS[number],
        "nvmlDeviceGetName": "NVIDIA H200",
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=141 * GIB, free=140 * GIB, used=GIB),
        "nvmlDeviceGetCudaComputeCapability": (9, 0),
        "nvmlDeviceGetMigMode": [0, 0],
        "nvmlDeviceGetComputeMode": 0,
        "nvmlDeviceGetComputeRunningProcesses": [],
        **answers,
    }


def error(code: int) -> Any:
    """The error that the real bindings raise for this code."""
    return pynvml.NVMLError(code)


def answer(value: Any) -> Any:
    """Give or raise what a fake was told to answer."""
    if isinstance(value, pynvml.NVMLError):
        raise value
    return value


def fake_pynvml(*cards: Any, **system: Any) -> ModuleType:
    """A stand-in for the bindings: the handle of a GPU is its dict of answers."""
    module: Any = ModuleType("pynvml")
    module.__file__ = "/site-packages/pynvml.py"
    module.NVMLError = pynvml.NVMLError
    module.shutdowns = 0

    def shut_down() -> None:
        module.shutdowns += 1

    module.nvmlInit = lambda: answer(system.get("init"))
    module.nvmlShutdown = shut_down
    module.nvmlSystemGetDriverVersion = lambda: answer(system.get("driver", "580.65.06"))
    module.nvmlSystemGetCudaDriverVersion_v2 = lambda: answer(system.get("cuda", 13000))
    module.nvmlSystemGetProcessName = lambda pid: answer(system.get("names", {}).get(pid, error(6)))
    module.nvmlDeviceGetCount = lambda: answer(system.get("count", len(cards)))
    module.nvmlDeviceGetHandleByIndex = lambda index: answer(cards[index])
    module.nvmlDeviceGetMigDeviceHandleByIndex = lambda handle, slot: answer(handle["instances"][slot])
    for function in (*card(), "nvmlDeviceGetMaxMigDeviceCount"):
        setattr(module, function, lambda handle, name=function: answer(handle[name]))
    return module
