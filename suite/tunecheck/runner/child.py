"""The training child: one attempt, from an empty process to a closed trace. What imports torch starts here."""

import gc
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import psutil
import torch

from tunecheck.config.trainers import TRAINERS
from tunecheck.core.errors import Unsupported
from tunecheck.core.evidence import Phase, Record, Released, Step, Trained
from tunecheck.core.text import bare_uuid
from tunecheck.core.trace import TraceWriter
from tunecheck.hardware.contention import CpuContention
from tunecheck.probes import PROBES
from tunecheck.probes.data_audit import DataProbe
from tunecheck.probes.reference.measures import live_tensors, norm
from tunecheck.probes.round_trip import ResumedProbe, RoundTripProbe
from tunecheck.probes.training_state import TrainingStateProbe
from tunecheck.runner import read_back
from tunecheck.runner.request import VISIBLE, Progress, Request
from tunecheck.runner.setup import setup_of
from tunecheck.training import trainer_of
from tunecheck.training.checkpoint import trained
from tunecheck.training.events import Probes
from tunecheck.training.load import resolve_device, resolve_precision
from tunecheck.training.restore import having
from tunecheck.training.session import Session


class Phases:
    """Writes a Phase record for each phase; the allocator's statistics are read outside the time of a step."""

    def __init__(self, device: Any, emit: Callable[[Record], None], memory: Any = None) -> None:
        """`memory` stands in for torch.cuda."""
        self._device, self._emit = device, emit
        self._memory: Any = (memory or torch.cuda) if device.type == "cuda" else None
        self._own: dict[str, int] = {}
        self._probes: dict[str, int] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What happens in the block is this phase. It is recorded also when memory runs out in it."""
        self._own, self._probes = {}, {}
        if self._memory is not None:
            self._memory.synchronize(self._device)
        before, company, started_at = self._collect({}), CpuContention(), time.monotonic()
        try:
            yield
        except RuntimeError as error:  # torch's OutOfMemoryError is one; after any other the device may not answer
            if type(error).__name__ == "OutOfMemoryError":
                self._end(name, started_at, before, company)
            raise
        self._end(name, started_at, before, company)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What happens in the block is the probes': its peak does not count as the training's."""
        self._collect(self._own)
        try:
            yield
        finally:
            self._collect(self._probes)

    def _collect(self, peaks: dict[str, int]) -> dict[str, int]:
        """Add the peaks since the last time to these, and start over; return how often memory has run short so far."""
        if self._memory is None:
            return {}
        statistics = self._memory.memory_stats_as_nested_dict(self._device)  # memory_stats would flatten it
        for kind in ("allocated", "requested", "reserved"):
            peaks[kind] = max(peaks.get(kind, 0), statistics[f"{kind}_bytes"]["all"]["peak"])
        self._memory.reset_peak_memory_stats(self._device)
        return {name: statistics[name] for name in ("num_alloc_retries", "num_ooms")}

    def _end(self, name: str, started_at: float, before: dict[str, int], company: CpuContention) -> None:
        figures: dict[str, int | None] = {}
        if self._memory is not None:
            self._memory.synchronize(self._device)
            after = self._collect(self._own)
            figures = {
                "peak_allocated_bytes": self._own["allocated"],
                "peak_requested_bytes": self._own["requested"],
                "peak_reserved_bytes": max(self._own["reserved"], self._probes.get("reserved", 0)),
                "probes_peak_allocated_bytes": self._probes.get("allocated"),
                "allocation_retries": after["num_alloc_retries"] - before["num_alloc_retries"],
                "out_of_memory_count": after["num_ooms"] - before["num_ooms"],
            }
        seen = Phase(
            name=name,
            seconds=time.monotonic() - started_at,
            started_at=started_at,
            process_bytes=psutil.Process().memory_info().rss,
            others_busy_share=company.busy_share(),
            **figures,
        )
        self._emit(seen)


def carry_out(request: Request, progress: Progress, rank: int = 0) -> None:
    """Do what is asked, as this rank, and write every record into the trace. Raises whatever the training raises."""
    run = request.run
    if run.training.threads is not None:  # else torch's own choice: OMP_NUM_THREADS, or the cores it may use
        torch.set_num_threads(run.training.threads)
    elif run.parallel is not None:  # the cores are those of all ranks
        torch.set_num_threads(max(1, torch.get_num_threads() // run.parallel.processes))
    device = resolve_device(request.device)
    if run.training.deterministic:
        _be_deterministic()
    cap_bytes = None
    if device.type == "cuda" or (request.purpose == "train" and run.evaluation.device == "cuda"):
        card = resolve_device("cuda")
        require_card(card, request.cards)
        cap_bytes = cap_memory(card, request.vram_cap_bytes)
    writer = TraceWriter(request.trace, rank)
    tensors, size = _live(device)
    if request.purpose == "read back":
        writer.write(read_back.read(run, request.folder, request.saved, device, resolve_precision(run, device)))
        return
    if request.purpose == "merge":
        writer.write(read_back.merged(_session(request, device), request.saved))
        return
    held = _train(request, device, cap_bytes, writer, progress)
    _let_go(device)
    tensors_after, size_after = _live(device)
    writer.write(Released(tensors=tensors_after - tensors, bytes=size_after - size, session_bytes=held - size))


def _be_deterministic() -> None:
    """Have torch choose kernels that give the same bits twice, and raise where it has none."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts; its default has races
    # with warn_only the backward passes of flash and memory-efficient attention keep their nondeterministic variant
    torch.use_deterministic_algorithms(True)
    # filling new tensors would hide bugs and cost a pass over each
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _train(request: Request, device: Any, cap_bytes: int | None, writer: TraceWriter, progress: Progress) -> int:
    """Build, probe and train; return the bytes alive at the end. Nothing of the session outlives the call."""
    run, max_steps = request.run, request.run.training.max_steps
    trainer, emit = trainer_of(run), writer.write

    def log(step: Step) -> None:
        writer.write(step)
        progress(step)

    phases = Phases(device, emit)
    with phases.phase("load"):
        session = _session(request, device)
    setup = setup_of(session, cap_bytes, declared_optimizer=TRAINERS[run.trainer].optimizer)
    emit(request.weights, request.dataset, setup)
    if request.purpose != "train":
        from_checkpoint = {  # what a resumed run saves has to be its own, not the checkpoint's
            "resume": (ResumedProbe, TrainingStateProbe, RoundTripProbe),
            "rescale": (ResumedProbe, DataProbe),
        }.get(request.purpose)
        first = trainer.load_checkpoint(session, request.checkpoint) if from_checkpoint else 0
        # a step's peak is reached in the second one, when the optimizer has its state; the third shows that it stays
        few = min(3, max_steps)
        last = {"repeat": run.probes.repeat_steps, "compare": few, "fallback step": few}.get(request.purpose, max_steps)
        with closing(Probes(from_checkpoint or (ResumedProbe,), emit)) as probes:
            probes.start(session)
            with phases.phase("steady"):
                trainer.train(session, probes, range(first, last), log)
            emit(_trained(session))
            if from_checkpoint:
                probes.end(session)
        return _live(device)[1]

    def save(done: int) -> None:
        if done == run.probes.resume_from:
            with phases.phase("save"):
                trainer.save_checkpoint(session, done, request.checkpoint)

    with closing(Probes(PROBES, emit)) as probes:
        with phases.phase("evaluation"):
            probes.start(session)
            probes.evaluate(session, 0)
        with (
            _in_phases(phases, max_steps, run.probes.resume_from, save) as after_step,
            having([(probes, "aside", phases.aside), (probes, "after_step", after_step)]),
        ):
            trainer.train(session, probes, range(max_steps), log)
        emit(_trained(session))
        with phases.phase("evaluation"):
            probes.evaluate(session, max_steps)
            probes.end(session)
    if run.probes.read_back or run.probes.merge:
        with phases.phase("save"):
            read_back.leave(session, request.saved)
    return _live(device)[1]


def _session(request: Request, device: Any) -> Session:
    session = trainer_of(request.run).build(request.run, request.folder, device)
    for fault in request.faults:
        fault(session)
    return session


def _trained(session: Any) -> Trained:
    scaler = "" if session.scaler is None else json.dumps(session.scaler.state_dict(), sort_keys=True)
    return Trained(norms={name: norm(tensor) for name, tensor in trained(session).items()}, scaler=scaler)


@contextmanager
def _in_phases(
    phases: Phases, max_steps: int, checkpoint_after: int | None, between: Callable[[int], None]
) -> Iterator[Callable[[int], None]]:
    """One phase after the other in one call of a trainer: the first step, then the steady ones, cut at a checkpoint."""
    with ExitStack() as phase:
        phase.enter_context(phases.phase("first step"))

        def after_step(done: int) -> None:
            if done in (1, checkpoint_after, max_steps):
                phase.close()
                between(done)
                if done < max_steps:
                    phase.enter_context(phases.phase("steady"))

        yield after_step


def _let_go(device: Any) -> None:
    """What nobody holds is given back to the allocator, cuBLAS's workspaces too: up to 64 MiB that no tensor holds."""
    gc.collect()
    if device.type == "cuda":
        torch._C._cuda_clearCublasWorkspaces()


def _live(device: Any) -> tuple[int, int]:
    """Tensors and bytes alive on the device: the allocator's count on a GPU, Python's objects on the CPU."""
    if device.type == "cuda":
        return live_tensors("cuda")[0], torch.cuda.memory_allocated(device)
    return live_tensors("cpu")


def require_card(device: Any, cards: Sequence[str] | None) -> None:
    """Require that the device is the first of these cards. Raises Unsupported when torch shows another one."""
    shown = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    card = next(iter(cards or ()), "")
    leased, seen = bare_uuid(card).lower(), bare_uuid(shown).lower()
    # torch may not tell a UUID, and a MIG instance's in other words
    if card.startswith("GPU-") and len(leased) == len(seen) == 36 and leased != seen:
        why = f"the run has a lease on {card}, but torch shows {shown}: CUDA was initialised before {VISIBLE} was set"
        raise Unsupported(f"{why}. What to do: run without --in-process, or set that variable yourself")


def cap_memory(device: Any, cap_bytes: int | None) -> int | None:
    """Cap what torch's allocator may take of the card, before it takes any; return the cap, None without one to set."""
    if cap_bytes is None or cap_bytes >= (total_bytes := torch.cuda.get_device_properties(device).total_memory):
        return None
    # the CUDA context and what libraries allocate come on top, so a real card of this size holds a little less
    torch.cuda.set_per_process_memory_fraction(cap_bytes / total_bytes, device)
    return cap_bytes
