"""Diagnoses: what one is, and those of the GPUs: driver, visibility, torch's view of them, bitsandbytes."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from tunecheck.core.known_bugs import CUDNN_ATTENTION, cudnn_attention_gives_nan
from tunecheck.core.text import bare_uuid, human_bytes
from tunecheck.core.units import GIB
from tunecheck.hardware.facts import Gpu, Hardware, NvmlState

CPU_ONLY = "quick and convergence run on the CPU; memory, extended and full are skipped"
HIDDEN_USE_BYTES = GIB
"""Memory in use without a listed process that is worth a warning: the driver keeps about half of it on a large GPU."""
MINIMUM_DRIVER = {12: 525, 13: 580}
"""Least driver branch on Linux by CUDA's major version (CUDA Toolkit release notes, table 2). The wheels of torch that
pip installs by default have been built for CUDA 13 since 2.11."""
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
NAME_BY_UUID = "name the GPUs by UUID, as `nvidia-smi -L` prints them"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One finding of the doctor."""

    level: Literal["ok", "warning", "error"]
    """Severity: a warning leaves the suite usable, an error does not."""
    topic: str
    found: str
    remedy: str = ""
    """What to do; empty where nothing is."""


ok = partial(Diagnosis, "ok")
"""Diagnose what needs no action."""
warning = partial(Diagnosis, "warning")
"""Diagnose what limits or distorts what the suite measures."""
error = partial(Diagnosis, "error")
"""Diagnose what makes runs fail."""


def format_diagnoses(diagnoses: Sequence[Diagnosis]) -> str:
    """Return plain text, one line each, in columns: level, topic, finding, and after an arrow the remedy."""
    topic_width = max((len(diagnosis.topic) for diagnosis in diagnoses), default=0)
    return "\n".join(
        f"{diagnosis.level:<7}  {diagnosis.topic:<{topic_width}}  {diagnosis.found}"
        + (f" -> {diagnosis.remedy}" if diagnosis.remedy else "")
        for diagnosis in diagnoses
    )


def memory_size(size_bytes: int | None) -> str:
    """Return a size for a reader, such as "3.2 GiB"; "? GiB" for None."""
    return "? GiB" if size_bytes is None else human_bytes(size_bytes)


def driver(hardware: Hardware) -> Iterator[Diagnosis]:
    """Diagnose NVML, the driver and its library."""
    if hardware.nvml_problem is not None:
        if hardware.nvml_state is NvmlState.NO_LIBRARY:
            yield ok("driver", f"{hardware.nvml_problem}; {CPU_ONLY}")
        else:
            yield error("driver", hardware.nvml_problem, hardware.nvml_remedy or "")
    elif not hardware.gpus:
        yield ok("driver", f"NVML works and lists no GPU; {CPU_ONLY}")
    else:
        version = hardware.gpus[0].driver_version or "of unknown version"
        yield ok("driver", f"{version}, CUDA up to {hardware.driver_cuda or '?'}, GPUs: {len(hardware.gpus)}")


def cards(hardware: Hardware) -> Iterator[Diagnosis]:
    """Diagnose the GPUs that CUDA will show, and what prevents their use."""
    if hardware.visible_problem is not None:
        yield warning(VISIBLE_DEVICES, hardware.visible_problem, NAME_BY_UUID)
    elif hardware.gpus and hardware.visible == () and VISIBLE_DEVICES in hardware.environment:
        hides = f"{hardware.environment[VISIBLE_DEVICES]!r} hides every GPU; {CPU_ONLY}"
        yield warning(VISIBLE_DEVICES, hides, "unset it to use the GPU")
    for gpu in hardware.gpus:
        if gpu.mig_instances == ():
            remedy = "create an instance with `nvidia-smi mig -cgi`, or leave MIG mode"
            yield warning(f"GPU {gpu.index}", "is in MIG mode without an instance, so CUDA shows nothing of it", remedy)
    for gpu in _shown(hardware):
        bf16 = {True: "bf16", False: "no bf16: fp16 or fp32", None: "bf16 unknown"}[gpu.bf16]
        free, total = memory_size(gpu.free_bytes), memory_size(gpu.total_bytes)
        named = f"{gpu.name or 'of unknown name'} ({gpu.uuid}): {free} of {total} free"
        yield ok(f"GPU {gpu.index}", f"{named}, compute capability {gpu.compute_capability or '?'}, {bf16}")
        remedy = f"run `nvidia-smi -i {gpu.index} -c DEFAULT` as an administrator"
        if gpu.compute_mode == "prohibited":
            yield error(f"GPU {gpu.index}", "compute mode prohibited: no process can use it", remedy)
        elif gpu.compute_mode in ("exclusive_process", "exclusive_thread"):
            yield warning(f"GPU {gpu.index}", "exclusive compute mode: a second process fails", remedy)
        yield from _neighbours(gpu)


def _shown(hardware: Hardware) -> tuple[Gpu, ...]:
    return hardware.gpus if hardware.visible is None else hardware.visible_gpus


def _neighbours(gpu: Gpu) -> Iterator[Diagnosis]:
    others = [process for process in gpu.memory_by_process or () if process.pid != os.getpid()]
    if others:
        told = [f"pid {one.pid} ({one.name or 'name unknown'}) with {memory_size(one.used_bytes)}" for one in others]
        remedy = "stop them or wait for them: until then memory and speed are not meaningful"
        yield warning(f"GPU {gpu.index}", f"other processes compute on it: {', '.join(told)}", remedy)
    elif not gpu.memory_by_process and gpu.total_bytes is not None and gpu.free_bytes is not None:
        used_bytes = gpu.total_bytes - gpu.free_bytes
        if used_bytes > HIDDEN_USE_BYTES:
            hidden = "in use by processes that the driver does not list, as inside a container"
            remedy = "run `nvidia-smi` on the host: until they end memory and speed are not meaningful"
            yield warning(f"GPU {gpu.index}", f"{memory_size(used_bytes)} {hidden}", remedy)


def torch_agrees(hardware: Hardware, torch: dict[str, Any] | str) -> Iterator[Diagnosis]:
    """Diagnose whether torch sees the GPUs that NVML lists, matched by UUID, and if not why."""
    if isinstance(torch, str):
        yield error("torch", torch, "reinstall torch; if its child still dies, reboot")
    elif torch["torch"] is None:
        yield error("torch", f"cannot be imported: {torch['error']}", "reinstall torch")
    elif torch["devices"]:
        yield _compared(hardware, torch)
    elif _shown(hardware):
        yield _blind(hardware, torch)
    else:
        yield ok("torch", f"{torch['torch']} sees no GPU, as NVML does")


def _compared(hardware: Hardware, torch: dict[str, Any]) -> Diagnosis:
    devices = torch["devices"]
    found = f"{torch['torch']} for CUDA {torch['cuda_build']} sees {len(devices)} GPU(s)"
    if not hardware.gpus:
        blind = "NVML none: neither other processes nor the driver's memory can be watched"
        remedy = hardware.nvml_remedy or "run `nvidia-smi` and read the kernel log"
        return warning("torch", f"{found}, {blind}", remedy)
    seen = {bare_uuid(device["uuid"]) for device in devices if device["uuid"] is not None}
    if len(seen) < len(devices):
        return ok("torch", f"{found}; this version does not report their UUIDs, so they cannot be compared with NVML's")
    listed = {bare_uuid(gpu.uuid) for gpu in _shown(hardware)}
    if seen == listed or (hardware.visible is None and seen <= listed):
        return ok("torch", f"{found}, the same as NVML by UUID")
    alone = f"torch alone has {_names(seen - listed)}, NVML alone {_names(listed - seen)}"
    remedy = f"name the GPUs by UUID in {VISIBLE_DEVICES}, and check whether one needs a reset"
    return error("torch", f"{found}, and they are not those of NVML: {alone}", remedy)


def _names(uuids: set[str]) -> str:
    return ", ".join(sorted(uuids)) or "none"


def cudnn_attention(torch: dict[str, Any] | str) -> Iterator[Diagnosis]:
    """Whether cuDNN attention of this torch returns NaN gradients on a card that it sees."""
    if isinstance(torch, str) or torch["torch"] is None:
        return
    for device in torch["devices"]:
        capability = str(device.get("compute_capability"))
        if cudnn_attention_gives_nan(torch["torch"], capability):
            yield warning(
                "attention",
                f"{torch['torch']} prefers cuDNN attention on {device['name']} (compute capability {capability}), and "
                f"its gradients are NaN for some masked lengths ({CUDNN_ATTENTION})",
                "call torch.backends.cuda.enable_cudnn_sdp(False) in your training, as tunecheck's own runs do",
            )


def _blind(hardware: Hardware, torch: dict[str, Any]) -> Diagnosis:
    """Return why torch sees no GPU although NVML lists some for it."""
    found = f"{torch['torch']} sees no GPU, NVML has {len(_shown(hardware))}"
    build: str | None = torch["cuda_build"]
    if build is None:
        return error("torch", f"{found}: this is a build without CUDA", "install a CUDA build of torch")
    if hardware.driver_cuda is not None and _major(hardware.driver_cuda) < _major(build):
        version = _shown(hardware)[0].driver_version or "of unknown version"
        least = MINIMUM_DRIVER.get(_major(build))
        too_old = f"it is built for CUDA {build}, and the driver is too old: {version} supports {hardware.driver_cuda}"
        update = f"update the driver{f' to {least} or newer' if least else ''}"
        remedy = f"{update}, or install a torch built for CUDA {_major(hardware.driver_cuda)}"
        return error("torch", f"{found}: {too_old}", remedy)
    remedy = f"check {VISIBLE_DEVICES} and the driver with `nvidia-smi`; reboot if both look right"
    return error("torch", f"{found}: {torch['cuda_error'] or 'it gives no reason'}", remedy)


def _major(version: str) -> int:
    return int(version.partition(".")[0])


def bitsandbytes_fits(torch: dict[str, Any] | str) -> Iterator[Diagnosis]:
    """Diagnose whether bitsandbytes has a native library for this torch; nothing where torch gave no answer."""
    if isinstance(torch, str) or torch["torch"] is None:
        return
    facts = torch["bitsandbytes"]
    topic, version, why = "bitsandbytes", facts["version"], facts["error"]
    if version is None:
        yield error(topic, f"cannot be imported: {why}", "pip install --force-reinstall bitsandbytes")
    elif facts["cuda_binary_fits"] is False:
        lacks = f"{version} has no binary for torch's CUDA {torch['cuda_build']}" + (f" ({why})" if why else "")
        remedy = "install a release of bitsandbytes built for that CUDA, and unset BNB_CUDA_VERSION"
        yield error(topic, lacks, remedy)
    elif facts["native_library"] is None:
        remedy = "run `python -m bitsandbytes`, or reinstall bitsandbytes"
        yield error(topic, f"{version} could not load its native library: {why}", remedy)
    else:
        yield ok(topic, f"{version} with {facts['native_library']}")
