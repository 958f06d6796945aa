"""Admission: whether this machine has what a run needs, and a sentence when it does not."""

from tunecheck.config.schema import Run
from tunecheck.config.trainers import TRAINERS
from tunecheck.core.errors import GpuUnusable
from tunecheck.core.finding import Domain
from tunecheck.core.units import GIB
from tunecheck.hardware import Gpu, Hardware, nvml
from tunecheck.hardware.facts import NAME_BY_UUID, NvmlState
from tunecheck.memory import need_of

UNEXPLAINED_BYTES, UNEXPLAINED_SHARE = GIB, 1 / 32
"""Memory in use above which a GPU without a visible process needs an explanation: the driver itself uses some."""


def obstacle(run: Run, hardware: Hardware) -> str | None:
    """Return why this machine cannot execute the run now, of the roomiest GPU that it lacks; None when it can."""
    if lacks := TRAINERS[run.trainer].lacks:
        return lacks
    if not run.uses_gpu:
        return None
    if not hardware.visible_gpus:
        return f"needs {_gpu(run)}; {no_gpu(hardware)}" if _only_on_gpu(run) else None
    if not (cards := hardware.usable_gpus):
        return "needs a GPU to compute on; the compute mode of every GPU here is prohibited"
    if len(cards) < run.gpus:
        return f"needs {run.gpus} GPUs, one for each process; this machine shows {len(cards)}"
    short = [(card, why) for card in cards if (why := shortage(run, card))]
    if (roomy := len(cards) - len(short)) >= run.gpus:
        return None
    _, why = max(short, key=lambda pair: _sizes(pair[0])[0] or 0)
    if run.gpus > 1:
        return f"needs {run.gpus} GPUs, one for each process; {roomy} have room, on the next it {why}"
    return f"{why} (the other {len(cards) - 1} have less)" if len(cards) > 1 else why


def shortage(run: Run, card: Gpu, *, when_empty: bool = False) -> str | None:
    """Return why this GPU lacks memory for the run now, or `when_empty` even with all of it free; None when it fits.

    One of unknown memory, a run of unknown need, and one that states none and has a fallback chain are admitted.
    """
    need = need_of(run, gpu_name=card.name, capability=card.compute_capability)
    free_bytes, total_bytes = _sizes(card)
    free_bytes = total_bytes if when_empty else free_bytes
    if need is None or free_bytes is None or need.bytes <= free_bytes or not _strict(run):
        return None
    # with as many decimals as tell the two apart
    places = next((number for number in (1, 2) if _gib(need.bytes, number) != _gib(free_bytes, number)), 3)
    return f"needs {_gib(need.bytes, places)} ({need.known}), {room(card, places)}"


def prospect(run: Run, hardware: Hardware) -> str:
    """Return for a table why the run cannot be executed here, or what it needs; the table says why there is no GPU."""
    if _only_on_gpu(run) and not hardware.visible_gpus:
        return f"needs {_gpu(run)}, and this machine shows none"
    if reason := obstacle(run, hardware):
        return reason
    if not run.uses_gpu or not hardware.visible_gpus:
        return "can run here, on the CPU"
    first = hardware.visible_gpus[0]
    need = need_of(run, gpu_name=first.name, capability=first.compute_capability)
    needs = f"needs {_gib(need.bytes)} ({need.known})" if need else "its need is unknown"
    goes_on = "" if _strict(run) else f"; out of memory it falls back to {', '.join(run.fallback)}"
    return f"can run here, {needs}{goes_on}"


def room(card: Gpu, places: int = 1) -> str:
    """Return a GPU and its memory in a line: "7.8 GiB free of 8.0 GiB on NVIDIA RTX 4060 Ti"."""
    free, total = _sizes(card)
    words = "unknown memory" if free is None or total is None else f"{_gib(free, places)} free of {_gib(total)}"
    return f"{words} on {card.name or card.uuid}{_cap_words(card)}{_held_words(card)}"


def no_gpu(hardware: Hardware) -> str:
    """Return why this machine has no usable GPU, and what to do about it."""
    hidden = "CUDA_VISIBLE_DEVICES hides it" if hardware.gpus else "its driver lists none"
    reasons = (hardware.nvml_problem or hardware.visible_problem or hidden, hardware.nvml_remedy)
    return "this machine shows none: " + "; ".join(reason for reason in reasons if reason)


def driver_fault(hardware: Hardware) -> Domain | None:
    """Return what keeps every run from a GPU that is there; None where none is known to be there, or one is usable."""
    if hardware.visible_gpus or hardware.environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return None
    if hardware.gpus and hardware.visible_problem:
        return Domain.ENVIRONMENT
    if hardware.nvml_state in (NvmlState.NO_BINDINGS, NvmlState.SHADOWED) and not nvml.has_device():
        return None
    return _FAULTS.get(hardware.nvml_state)


def require_usable(hardware: Hardware) -> None:
    """Raise GpuUnusable when a GPU is there that no run can use: a run for either device would go to the CPU."""
    if fault := driver_fault(hardware):
        why = f"the GPU of this machine cannot be used: {hardware.nvml_problem or hardware.visible_problem}"
        remedy = f"{hardware.nvml_remedy or NAME_BY_UUID}; or train on the CPU with --set device=cpu"
        raise GpuUnusable(f"{why}. What to do: {remedy}", fault)


_FAULTS = {  # a driver that is not loaded proves no GPU: images of virtual machines have it
    NvmlState.GPU_LOST: Domain.HARDWARE,
    **dict.fromkeys((NvmlState.VERSION_MISMATCH, NvmlState.NO_PERMISSION, NvmlState.NO_UTILITIES), Domain.ENVIRONMENT),
    **dict.fromkeys((NvmlState.NO_BINDINGS, NvmlState.SHADOWED), Domain.ENVIRONMENT),
    **dict.fromkeys((NvmlState.HUNG, NvmlState.OTHER), Domain.UNKNOWN),
}


def _only_on_gpu(run: Run) -> bool:
    return "cuda" in (run.device, run.evaluation.device) or run.vram is not None


def _strict(run: Run) -> bool:
    """Return whether a GPU that is too small means a skip; otherwise the run's fallback chain decides."""
    return run.vram is not None or not run.fallback


def _gpu(run: Run) -> str:
    need = need_of(run, gpu_name=None)
    return f"a GPU with {_gib(need.bytes)} of free memory ({need.known})" if need else "a GPU"


def _sizes(card: Gpu) -> tuple[int | None, int | None]:
    """Return the GPU's free and total bytes, at most its cap; None for what is unknown."""
    sizes, cap_bytes = (card.free_bytes, card.total_bytes), card.cap_bytes
    free, total = (size if size is None or cap_bytes is None else min(size, cap_bytes) for size in sizes)
    return free, total


def _cap_words(card: Gpu) -> str:
    """Return the cap in words, so that nobody takes a capped GPU for a small one."""
    if card.cap_bytes is None:
        return ""
    if card.total_bytes is None:
        return f" under --vram-cap {_gib(card.cap_bytes)}"
    real = f"{_gib(card.free_bytes)} free of " if card.free_bytes is not None else ""
    return f" under --vram-cap {_gib(card.cap_bytes)} (the card itself: {real}{_gib(card.total_bytes)})"


def _held_words(card: Gpu) -> str:
    """Return which processes use memory on the GPU, the largest first; a MIG instance's are those of its GPU."""
    held = sorted(card.memory_by_process or (), key=lambda process: -(process.used_bytes or 0))
    words = [
        f"{'memory' if process.used_bytes is None else _gib(process.used_bytes)} held by process {process.pid}"
        f"{f' ({process.name})' if process.name else ''}"
        for process in held[:2]  # the others are counted
    ]
    if rest := len(held) - len(words):
        words.append(f"more by {rest} other{'s' if rest > 1 else ''}")
    used_bytes = (card.total_bytes or 0) - (card.free_bytes or 0)
    strange_bytes = max(UNEXPLAINED_BYTES, (card.total_bytes or 0) * UNEXPLAINED_SHARE)
    if not words and card.free_bytes is not None and used_bytes > strange_bytes:
        words = [f"{_gib(used_bytes)} held by processes that the driver does not show here"]
    return "".join(f", {word}" for word in words)


def _gib(size_bytes: int, places: int = 1) -> str:
    return f"{size_bytes / GIB:.{places}f} GiB"
