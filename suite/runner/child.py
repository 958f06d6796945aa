"""The training child:

one attempt, from an empty process to a closed trace. Everything that imports torch starts here.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.config.schema import Run
from suite.evidence import Phase, Record, Released, Resumed, Setup, Step, Weights
from suite.runner.card import cap_memory, require_card
from suite.trace import TraceWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the parent asks of a child; everything in it can be pickled."""

    run: Run
    purpose: str
    """train, repeat or resume."""
    device: str
    weights: Weights
    folder: Path
    """The model's files."""
    trace: Path
    checkpoint: Path
    """Where a checkpoint is written (train) or read (resume)."""
    faults: tuple[Callable[[Any], None], ...] = ()
    """Functions that break a healthy session from outside, called when it is built: to see what the suite catches."""
    card: str | None = None
    """UUID of the GPU or MIG instance that is this attempt's; "" for none, None where the parent knows of no card."""
    vram_cap_bytes: int | None = None
    """What torch's allocator may use of the card; None for all of it, and without meaning on the CPU."""


def carry_out(request: Request, progress: Callable[[Step], None]) -> None:
    """Do what is asked and write every record into the trace. Raises whatever the training raises."""
    import torch

    from suite.models.load import resolve_device

    run = request.run
    if run.training.threads is not None:  # else torch's own choice: OMP_NUM_THREADS, or the cores it may use
        torch.set_num_threads(run.training.threads)
    device = resolve_device(request.device)
    cap_bytes = None
    if device.type == "cuda":
        require_card(device, request.card)
        cap_bytes = cap_memory(device, request.vram_cap_bytes)
    writer = TraceWriter(request.trace)
    try:
        tensors, size = _live(device)
        held = _train(request, device, cap_bytes, writer, progress)
        gc.collect()
        tensors_after, size_after = _live(device)
        writer.write(Released(tensors=tensors_after - tensors, bytes=size_after - size, session_bytes=held - size))
    finally:
        writer.close()


def _train(
    request: Request, device: Any, cap_bytes: int | None, writer: TraceWriter, progress: Callable[[Step], None]
) -> int:
    """Build, probe and train; returns the bytes that were alive at the end.

    Nothing of the session outlives the call.
    """
    from suite.probe import Probes
    from suite.probes import PROBES
    from suite.trainer import native
    from suite.trainer.checkpoint import load_checkpoint, save_checkpoint

    run, max_steps = request.run, request.run.training.max_steps

    def emit(*records: Record) -> None:
        writer.write(*records)

    def log(step: Step) -> None:
        writer.write(step)
        progress(step)

    with _phase("load", device, emit):
        session = native.build(run, request.folder, device)
        for fault in request.faults:
            fault(session)
    emit(request.weights, _setup(session, cap_bytes))
    if request.purpose != "train":
        first = load_checkpoint(session, request.checkpoint) if request.purpose == "resume" else 0
        if first:
            steps = [int(state["step"]) for state in session.optimizer.state.values()]
            emit(Resumed(step=first, optimizer_steps=max(steps, default=0)))
        last = max_steps if request.purpose == "resume" else run.probes.repeat_steps
        native.train(session, Probes((), emit), range(first, last), log)
        return _live(device)[1]

    probes = Probes(PROBES, emit)
    with _phase("probe the start", device, emit):
        probes.start(session)
        probes.evaluate(session, 0)
    half = run.probes.resume_from
    with _phase("train", device, emit):
        native.train(session, probes, range(half or max_steps), log)
        if half is not None:
            save_checkpoint(session, half, request.checkpoint)
            native.train(session, probes, range(half, max_steps), log)
    with _phase("probe the end", device, emit):
        probes.evaluate(session, max_steps)
        probes.end(session)
    return _live(device)[1]


def _setup(session: Any, cap_bytes: int | None) -> Setup:
    import platform
    from importlib.metadata import version

    import torch

    cuda = None
    name = platform.processor() or platform.machine()
    if session.device.type == "cuda":
        card = torch.cuda.get_device_properties(session.device)
        name = card.name
        cuda = {
            "name": card.name,
            "uuid": f"GPU-{card.uuid}" if hasattr(card, "uuid") else None,
            "compute_capability": f"{card.major}.{card.minor}",
            "total_bytes": card.total_memory,
            "cuda": torch.version.cuda,
        }
    distributions = ("torch", "transformers", "peft", "bitsandbytes", "accelerate", "tokenizers", "safetensors")
    return Setup(
        device=str(session.device),
        device_name=name,
        precision=session.precision,
        threads=torch.get_num_threads(),
        attention=str(session.model.config._attn_implementation),
        optimizer=type(session.optimizer).__name__,
        workarounds=session.workarounds,
        numerics={
            "tf32_matmul": torch.backends.cuda.matmul.allow_tf32,
            "tf32_cudnn": torch.backends.cudnn.allow_tf32,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "openmp_spin_count": os.environ.get("GOMP_SPINCOUNT"),
        },
        versions={name: version(name) for name in distributions},
        cuda=cuda,
        vram_cap_bytes=cap_bytes,
    )


@contextmanager
def _phase(name: str, device: Any, emit: Callable[[Record], None]) -> Iterator[None]:
    """Record how long the block took and the memory peaks in it."""
    import psutil
    import torch

    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    started = time.perf_counter()
    yield
    if cuda:
        torch.cuda.synchronize(device)
    emit(
        Phase(
            name=name,
            seconds=time.perf_counter() - started,
            peak_allocated_bytes=torch.cuda.max_memory_allocated(device) if cuda else None,
            peak_reserved_bytes=torch.cuda.max_memory_reserved(device) if cuda else None,
            process_bytes=psutil.Process().memory_info().rss,
        )
    )


def _live(device: Any) -> tuple[int, int]:
    """Tensors and bytes alive on the device: the allocator's count on a GPU, Python's objects on the CPU."""
    import torch

    from suite.probes.resources import live_tensors

    if device.type == "cuda":
        return live_tensors("cuda")[0], torch.cuda.memory_allocated(device)
    return live_tensors("cpu")
