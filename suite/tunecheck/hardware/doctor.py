"""Doctor: everything on this machine that prevents or distorts fine-tuning, each with its remedy."""

from collections.abc import Iterator
from urllib.parse import urlsplit

from tunecheck.config.cards import card_for
from tunecheck.core.errors import TRAIN_EXTRA
from tunecheck.core.units import GIB
from tunecheck.hardware import Disk, Hardware, gpu_symptoms, network, probe
from tunecheck.hardware.gpu_symptoms import Diagnosis, error, memory_size, ok, warning
from tunecheck.hardware.host import distribution_version
from tunecheck.hardware.torch_facts import torch_view

DEFAULT_MODEL = "smollm2-135m"
"""Name of the quick tier's model in configs/models."""
CACHE_MINIMUM_BYTES = 5 * GIB
"""Space for a model of 1.1 billion parameters in bf16, once as downloaded and once as converted."""
WORK_MINIMUM_BYTES = 1 * GIB
"""Space for the adapters, checkpoints and traces of a session."""
MINIMUM_INODES = 1000
"""Inodes needed: a session writes a few dozen files, a cached model about ten."""
_DISTORTING = {
    "BNB_CUDA_VERSION": "bitsandbytes loads the binary of that CUDA version and no other",
    "CUDA_LAUNCH_BLOCKING": "every kernel launch blocks, so speeds are not meaningful",
    "NVIDIA_TF32_OVERRIDE": "fp32 products are rounded to TF32 whatever torch is set to, so numeric checks may fail",
}


def examine(*, cached: bool) -> list[Diagnosis]:
    """Return all diagnoses, those without problems included. Needs no GPU.

    torch is queried in a child process that takes some seconds. `cached` says whether the default model's weights are
    on this machine.
    """
    hardware, torch = probe(), torch_view()
    return [
        *gpu_symptoms.driver(hardware),
        *gpu_symptoms.cards(hardware),
        *card_class(hardware),
        *gpu_symptoms.torch_agrees(hardware, torch),
        *gpu_symptoms.cudnn_attention(torch),
        *gpu_symptoms.bitsandbytes_fits(torch),
        *libraries(hardware),
        *processor(hardware),
        *disk(hardware),
        *environment(hardware),
        weights(cached=cached),
        *hub(),
    ]


def card_class(hardware: Hardware) -> list[Diagnosis]:
    """Return which class of configs/cards suits this machine; nothing where a GPU does not report its memory."""
    sizes = [gpu.total_bytes for gpu in hardware.visible_gpus]
    if None in sizes:
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
    yield _room(
        "cache disk", hardware.cache_disk, CACHE_MINIMUM_BYTES, ", or set TUNECHECK_CACHE to a folder with more space"
    )
    yield _room("work disk", hardware.work_disk, WORK_MINIMUM_BYTES, ", or work in a folder with more space")


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
    from huggingface_hub import constants

    if network.hub_offline():
        yield ok("hub", "not asked: HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) is set")
    elif problem := network.hub_problem(constants.ENDPOINT):
        unneeded = "nothing to do when the weights are cached or come from a package"
        yield warning("hub", problem, f"{unneeded}; else check HF_ENDPOINT, network and proxy")
    else:
        yield ok("hub", f"{urlsplit(constants.ENDPOINT).hostname} can be reached")


def environment(hardware: Hardware) -> Iterator[Diagnosis]:
    """Diagnose environment variables that distort what the suite measures."""
    for name, effect in _DISTORTING.items():
        if (value := hardware.environment.get(name, "")) not in ("", "0"):
            yield warning(name, f"is set to {value}: {effect}", "unset it, unless this is what you want to test")
