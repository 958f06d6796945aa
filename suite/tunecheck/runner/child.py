"""The training child:

one attempt, from an empty process to a closed trace. Everything that imports torch starts here.
"""

import gc
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunecheck.config.schema import Run
from tunecheck.config.trainers import TRAINERS
from tunecheck.core.evidence import Beginning, Dataset, Record, Released, Step, Trained, Weights
from tunecheck.core.frozen import Frozen
from tunecheck.core.trace import TraceWriter
from tunecheck.runner import read_back
from tunecheck.runner.card import cap_memory, require_card
from tunecheck.runner.phases import Phases
from tunecheck.runner.setup import setup_of

if TYPE_CHECKING:
    from tunecheck.training.session import Session

COMPARED_STEPS = 3
"""The peak of a step is reached in the second one, when the optimizer has its state; the third shows that it stays."""


class Request(Frozen):
    """What the parent asks of a child; everything in it can be pickled."""

    run: Run
    purpose: str
    """An AttemptPurpose."""
    device: str
    weights: Weights
    folder: Path
    """The model's files."""
    dataset: Dataset
    """Where the rows come from that the run's data names."""
    trace: Path
    checkpoint: Path
    """Where a checkpoint is written (train) or read (resume)."""
    saved: Path
    """Where what was trained is saved (train), read back or merged."""
    faults: tuple[Callable[[Any], None], ...] = ()
    """Functions that break a healthy session from outside, called when it is built: to see what the suite catches."""
    cards: tuple[str, ...] | None = None
    """UUIDs of the GPUs or MIG instances that are this attempt's, one for each process; None where the parent knows of
    no card."""
    vram_cap_bytes: int | None = None
    """What torch's allocator may use of the card; None for all of it, and without meaning on the CPU."""

    @property
    def written(self) -> tuple[Path, ...]:
        """The folders that the attempt writes into."""
        return (self.checkpoint.parent, self.trace.parent)


def carry_out(request: Request, progress: Callable[[Step], None], rank: int = 0) -> None:
    """Do what is asked, as this rank, and write every record into the trace. Raises whatever the training raises."""
    import torch

    from tunecheck.training.load import resolve_device, resolve_precision

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
    try:
        tensors, size = _live(device)
        if request.purpose == "read back":
            precision = resolve_precision(run, device)
            writer.write(read_back.read(run, request.folder, request.saved, device, precision))
            return
        if request.purpose == "merge":
            writer.write(read_back.merged(_session(request, device), request.saved))
            return
        held = _train(request, device, cap_bytes, writer, progress)
        _let_go(device)
        tensors_after, size_after = _live(device)
        writer.write(Released(tensors=tensors_after - tensors, bytes=size_after - size, session_bytes=held - size))
    finally:
        writer.close()


def _be_deterministic() -> None:
    """Have torch choose kernels that give the same bits twice, and raise where it has none.

    With warn_only the backward passes of flash and memory-efficient attention keep their nondeterministic variant, and
    a healthy run seems not to repeat or resume.
    """
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts; its default has races
    torch.use_deterministic_algorithms(True)
    # filling new tensors would hide bugs and cost a pass over each
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _train(
    request: Request, device: Any, cap_bytes: int | None, writer: TraceWriter, progress: Callable[[Step], None]
) -> int:
    """Build, probe and train; returns the bytes that were alive at the end.

    Nothing of the session outlives the call.
    """
    from tunecheck.probes import PROBES
    from tunecheck.probes.data_audit import DataProbe
    from tunecheck.probes.resumed import ResumedProbe
    from tunecheck.probes.round_trip import RoundTripProbe
    from tunecheck.probes.training_state import TrainingStateProbe
    from tunecheck.training import trainer_of
    from tunecheck.training.events import Probes

    run, max_steps = request.run, request.run.training.max_steps
    trainer = trainer_of(run)

    def emit(*records: Record) -> None:
        writer.write(*records)

    def log(step: Step) -> None:
        writer.write(step)
        progress(step)

    phases = Phases(device, emit)
    with phases.phase("load"):
        session = _session(request, device)
    emit(
        request.weights,
        request.dataset,
        setup_of(session, cap_bytes, declared_optimizer=TRAINERS[run.trainer].optimizer),
    )
    if run.probes.reference and request.purpose in ("train", "reference"):
        emit(_beginning(session))
    if request.purpose != "train":
        from_checkpoint = {  # what a resumed run saves has to be its own, not the checkpoint's
            "resume": (ResumedProbe, TrainingStateProbe, RoundTripProbe),
            "rescale": (ResumedProbe, DataProbe),
        }.get(request.purpose)
        first = trainer.load_checkpoint(session, request.checkpoint) if from_checkpoint else 0
        last = {
            "resume": max_steps,
            "rescale": max_steps,
            "reference": max_steps,
            "repeat": run.probes.repeat_steps,
            "compare": min(COMPARED_STEPS, max_steps),
            "fallback step": min(COMPARED_STEPS, max_steps),
        }[request.purpose]
        probes = Probes(from_checkpoint or (ResumedProbe,), emit)
        probes.start(session)
        with phases.phase("steady"):
            trainer.train(session, probes, range(first, last), log)
        emit(_trained(session))
        if from_checkpoint:
            probes.end(session)
        return _live(device)[1]

    probes = Probes(PROBES, emit)
    with phases.phase("evaluation"):
        probes.start(session)
        probes.evaluate(session, 0)

    def save(done: int) -> None:
        if done == run.probes.resume_from:
            with phases.phase("save"):
                trainer.save_checkpoint(session, done, request.checkpoint)

    with (
        _in_phases(phases, max_steps, run.probes.resume_from, save) as after_step,
        probes.set_aside(phases.aside, after_step),
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


def _session(request: Request, device: Any) -> "Session":
    from tunecheck.training import trainer_of

    session = trainer_of(request.run).build(request.run, request.folder, device)
    for fault in request.faults:
        fault(session)
    return session


def _trained(session: Any) -> Trained:
    from tunecheck.probes.reference.measures import norm
    from tunecheck.training.checkpoint import trained

    return Trained(
        norms={name: norm(tensor) for name, tensor in trained(session).items()},
        scaler="" if session.scaler is None else json.dumps(session.scaler.state_dict(), sort_keys=True),
    )


def _beginning(session: "Session") -> Beginning:
    """Return a digest of all that training starts from: tensors by name, quantisation statistics, the random state.

    Two attempts with the same settings must begin alike.
    """
    import torch

    from tunecheck.probes.reference.measures import digest

    state = hashlib.sha256()
    tensors = 0
    for tensors, (name, tensor) in enumerate(_named_tensors(session.model), start=1):  # noqa: B007 - the count is wanted
        state.update(f"{name} {digest(tensor)}\n".encode())
    state.update(torch.get_rng_state().numpy().tobytes())
    held = sum(bool(values) for values in session.optimizer.state.values())
    return Beginning(tensors=tensors, digest=state.hexdigest()[:16], optimizer_states=held)


def _named_tensors(model: Any) -> Iterator[tuple[str, Any]]:
    from tunecheck.probes.reference.four_bit import is_packed, statistics

    for name, parameter in model.named_parameters():
        yield name, parameter
        if is_packed(parameter):
            yield from ((f"{name}.{part}", tensor) for part, tensor in statistics(parameter))
    yield from model.named_buffers()


@contextmanager
def _in_phases(
    phases: Phases, max_steps: int, checkpoint_after: int | None, between: Callable[[int], None]
) -> Iterator[Callable[[int], None]]:
    """One phase after the other while a trainer goes on, which is called once: it is told how many steps are done.

    The first step, which pays for all that is new, then the steady ones, cut where a checkpoint is due.
    """
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
    import torch

    gc.collect()
    if device.type == "cuda":
        torch._C._cuda_clearCublasWorkspaces()


def _live(device: Any) -> tuple[int, int]:
    """Tensors and bytes alive on the device: the allocator's count on a GPU, Python's objects on the CPU."""
    import torch

    from tunecheck.probes.reference.measures import live_tensors

    if device.type == "cuda":
        return live_tensors("cuda")[0], torch.cuda.memory_allocated(device)
    return live_tensors("cpu")
