"""Doctor: everything on this machine that prevents or distorts fine-tuning, each with its remedy."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal
from urllib.parse import urlsplit

from tunecheck.config.cards import card_for
from tunecheck.core.errors import TRAIN_EXTRA
from tunecheck.core.known_bugs import CUDNN_ATTENTION, cudnn_attention_gives_nan
from tunecheck.core.text import bare_uuid, human_bytes
from tunecheck.core.units import GIB
from tunecheck.hardware import Disk, Hardware, network, probe
from tunecheck.hardware.facts import NAME_BY_UUID, Gpu, NvmlState
from tunecheck.hardware.host import distribution_version
from tunecheck.hardware.torch_facts import torch_view

DEFAULT_MODEL = "smollm2-135m"
"""Name of the quick tier's model in configs/models."""

MINIMUM_INODES = 1000
"""Inodes needed: a session writes a few dozen files, a cached model about ten."""
CPU_ONLY = "quick and convergence run on the CPU; memory, extended and full are skipped"

MINIMUM_DRIVER = {12: 525, 13: 580}
"""Least driver branch on Linux by CUDA's major version (CUDA Toolkit release notes, table 2). The wheels of torch that
pip installs by default have been built for CUDA 13 since 2.11."""
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_DISTORTING = {
    "BNB_CUDA_VERSION": "bitsandbytes loads the binary of that CUDA version and no other",
    "CUDA_LAUNCH_BLOCKING": "every kernel launch blocks, so speeds are not meaningful",
    "NVIDIA_TF32_OVERRIDE": "fp32 products are rounded to TF32 whatever torch is set to, so numeric checks may fail",
}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One finding of the doctor."""

    level: Literal["ok", "warning", "error"]
    """Severity: a warning leaves the suite usable, an error does not."""
    topic: str
    found: str
    remedy: str = ""


ok = partial(Diagnosis, "ok")
warning = partial(Diagnosis, "warning")
error = partial(Diagnosis, "error")


def format_diagnoses(diagnoses: Sequence[Diagnosis]) -> str:
    """Return plain text, one line each, in columns: level, topic, finding, and after an arrow the remedy."""
    topic_width = max((len(diagnosis.topic) for diagnosis in diagnoses), default=0)
    told = [(one, f" -> {one.remedy}" if one.remedy else "") for one in diagnoses]
    return "\n".join(f"{one.level:<7}  {one.topic:<{topic_width}}  {one.found}{remedy}" for one, remedy in told)


def memory_size(size_bytes: int | None) -> str:
    return "? GiB" if size_bytes is None else human_bytes(size_bytes)


def examine(*, cached: bool) -> list[Diagnosis]:
    """Return all diagnoses, those without problems included; `cached`: whether the default model's weights are here."""
    hardware, torch = probe(), torch_view()
    return [
        *driver(hardware),
        *cards(hardware),
        *card_class(hardware),
        *torch_agrees(hardware, torch),
        *cudnn_attention(torch),
        *bitsandbytes_fits(torch),
        *libraries(hardware),
        *processor(hardware),
        *disk(hardware),
        *environment(hardware),
        weights(cached=cached),
        *hub(),
    ]


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
    if others := [process for process in gpu.memory_by_process or () if process.pid != os.getpid()]:
        told = [f"pid {one.pid} ({one.name or 'name unknown'}) with {memory_size(one.used_bytes)}" for one in others]
        remedy = "stop them or wait for them: until then memory and speed are not meaningful"
        yield warning(f"GPU {gpu.index}", f"other processes compute on it: {', '.join(told)}", remedy)
    elif not gpu.memory_by_process and gpu.total_bytes is not None and gpu.free_bytes is not None:
        used_bytes = gpu.total_bytes - gpu.free_bytes
        if used_bytes > GIB:  # the driver keeps about half of it on a large GPU
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
    if len(seen := {bare_uuid(device["uuid"]) for device in devices if device["uuid"] is not None}) < len(devices):
        return ok("torch", f"{found}; this version does not report their UUIDs, so they cannot be compared with NVML's")
    listed = {bare_uuid(gpu.uuid) for gpu in _shown(hardware)}
    if seen == listed or (hardware.visible is None and seen <= listed):
        return ok("torch", f"{found}, the same as NVML by UUID")
    torch_alone, nvml_alone = (", ".join(sorted(uuids)) or "none" for uuids in (seen - listed, listed - seen))
    alone = f"torch alone has {torch_alone}, NVML alone {nvml_alone}"
    remedy = f"name the GPUs by UUID in {VISIBLE_DEVICES}, and check whether one needs a reset"
    return error("torch", f"{found}, and they are not those of NVML: {alone}", remedy)


def cudnn_attention(torch: dict[str, Any] | str) -> Iterator[Diagnosis]:
    """Whether cuDNN attention of this torch returns NaN gradients on a card that it sees."""
    if isinstance(torch, str) or torch["torch"] is None:
        return
    for device in torch["devices"]:
        if cudnn_attention_gives_nan(torch["torch"], capability := str(device.get("compute_capability"))):
            yield warning(
                "attention",
                f"{torch['torch']} prefers cuDNN attention on {device['name']} (compute capability {capability}), and "
                f"its gradients are NaN for some masked lengths ({CUDNN_ATTENTION})",
                "call torch.backends.cuda.enable_cudnn_sdp(False) in your training, as tunecheck's own runs do",
            )


def _blind(hardware: Hardware, torch: dict[str, Any]) -> Diagnosis:
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


def card_class(hardware: Hardware) -> list[Diagnosis]:
    """Return which class of configs/cards suits this machine; nothing where a GPU does not report its memory."""
    if None in (sizes := [gpu.total_bytes for gpu in hardware.visible_gpus]):
        return []
    largest = max((size for size in sizes if size is not None), default=None)
    name = card_for(largest)
    why = "no GPU" if largest is None else f"the largest GPU has {memory_size(largest)}"
    return [ok("card class", f"{name}: {why}; train with its settings: `tunecheck run quick --card {name}`")]


def libraries(hardware: Hardware) -> Iterator[Diagnosis]:
    """Diagnose missing distributions, and the deprecated `pynvml`."""
    absent = [name for name, version in hardware.versions.items() if version is None]
    if missing := [name for name in absent if name != "tunecheck"]:  # a checkout need not be installed
        yield error("libraries", f"not installed: {', '.join(missing)}", TRAIN_EXTRA)
    else:
        names = ("torch", "transformers", "peft", "accelerate")
        yield ok("libraries", ", ".join(f"{name} {hardware.versions[name]}" for name in names))
    if (version := distribution_version("pynvml")) is not None:
        yield warning(
            "pynvml",
            f"the deprecated package pynvml {version} is installed beside nvidia-ml-py, which has the same module",
            "run `pip uninstall pynvml`, then `pip install --force-reinstall nvidia-ml-py`",
        )


def processor(hardware: Hardware) -> Iterator[Diagnosis]:
    """Describe the processor, its usable cores, and the precision that `auto` selects on it."""
    cpu = hardware.cpu
    bf16 = {
        True: "native bf16",
        False: "no native bf16 (AVX512-BF16, AMX): runs on the CPU use fp32",
        None: "native bf16 unknown",
    }[cpu.bf16]
    cores = f"{cpu.usable_cores or '?'} of {cpu.logical_cores or '?'} logical cores usable"
    yield ok("CPU", f"{cpu.model or 'of unknown model'}, {cores}, {bf16}")
    free, total = memory_size(hardware.ram_available_bytes), memory_size(hardware.ram_total_bytes)
    yield ok("memory", f"{free} of {total} RAM available")


def disk(hardware: Hardware) -> Iterator[Diagnosis]:
    """Diagnose space and inodes of the cache and the current folder."""
    # a model of 1.1 billion parameters in bf16, once as downloaded and once as converted
    yield _room("cache disk", hardware.cache_disk, 5 * GIB, ", or set TUNECHECK_CACHE to a folder with more space")
    # the adapters, checkpoints and traces of a session
    yield _room("work disk", hardware.work_disk, 1 * GIB, ", or work in a folder with more space")


def _room(topic: str, space: Disk, minimum_bytes: int, otherwise: str) -> Diagnosis:
    remedy = f"free space{otherwise}"
    if not space.writable:
        return error(topic, "cannot write there", f"give this user write permission{otherwise}")
    if space.free_bytes is None:
        return warning(topic, "its free space cannot be read", f"check that the folder can be reached{otherwise}")
    free = f"{memory_size(space.free_bytes)} free"
    if space.free_inodes is not None and space.free_inodes < MINIMUM_INODES:
        return error(topic, f"{space.free_inodes} inodes left, {MINIMUM_INODES} are needed", remedy)
    if space.free_bytes < minimum_bytes:
        return warning(topic, f"{free}, {memory_size(minimum_bytes)} are recommended", remedy)
    return ok(topic, free)


def weights(*, cached: bool) -> Diagnosis:
    """Diagnose whether the default model's weights are on this machine."""
    if cached:
        return ok("weights", f"cached: {DEFAULT_MODEL}")
    remedy = "`scripts/gpu-test.sh quick` fetches it; it needs a network"
    return warning("weights", f"{DEFAULT_MODEL} is not in the cache", remedy)


def hub() -> Iterator[Diagnosis]:
    """Diagnose whether the model hub can be reached, with one connection of 2 s at most."""
    if distribution_version("huggingface-hub") is None:
        yield warning("hub", "not asked: huggingface-hub is not installed", TRAIN_EXTRA)
        return
    from huggingface_hub import constants, is_offline_mode

    if is_offline_mode():
        yield ok("hub", "not asked: HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) is set")
    elif problem := network.hub_problem(constants.ENDPOINT):
        unneeded = "nothing to do when the weights are cached or come from a package"
        yield warning("hub", problem, f"{unneeded}; else check HF_ENDPOINT, network and proxy")
    else:
        yield ok("hub", f"{urlsplit(constants.ENDPOINT).hostname} can be reached")


def environment(hardware: Hardware) -> Iterator[Diagnosis]:
    for name, effect in _DISTORTING.items():
        if (value := hardware.environment.get(name, "")) not in ("", "0"):
            yield warning(name, f"is set to {value}: {effect}", "unset it, unless this is what you want to test")
