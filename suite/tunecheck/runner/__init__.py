"""From a run to its trace: weights and data, attempts in child processes, fallback. The whole story is in `execute`."""

import fcntl
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tunecheck import assets as models
from tunecheck.assets import rows
from tunecheck.config.compatibility import require_count
from tunecheck.config.schema import Run
from tunecheck.core.errors import SuiteError
from tunecheck.core.evidence import AttemptEnd, AttemptOutcome, AttemptPurpose, AttemptReason, AttemptStart, Step
from tunecheck.core.frozen import Frozen
from tunecheck.core.log import log
from tunecheck.core.trace import Trace, TraceWriter, header_of, read
from tunecheck.hardware.monitor import Meter
from tunecheck.runner.fallback_chain import VARIANTS, every_fallback_step, rescaled, tries, variant
from tunecheck.runner.outcome import Outcome, outcome_of
from tunecheck.runner.process import run_child, run_here
from tunecheck.runner.ranks import merge_traces
from tunecheck.runner.request import Request

TRAIN = AttemptPurpose.TRAIN
ALONE = (AttemptPurpose.READ_BACK, AttemptPurpose.MERGE)
"""Attempts that one process makes, however many train: what was saved must load in it."""

PREFIX = "tunecheck-"
_OWNED = "owned"
"""File in the folder that its process keeps locked. A process id would not do: containers may share the folder."""


class Runner(Frozen):
    """Carries out runs on this machine, one after the other."""

    folder: Path
    """Where traces and logs go; made when it is missing."""
    environment: dict[str, Any]
    gpu: bool
    """Whether this machine has a GPU that torch may use."""
    cards: tuple[str, ...] = ()
    """UUIDs of the GPUs or MIG instances leased for the run, one a process; none on the CPU, or where unknown."""
    vram_cap_bytes: int | None = None
    """What torch's allocator may use of the card; None for all of it."""
    in_process: bool = False
    faults: tuple[Callable[[Any], None], ...] = ()

    def execute(self, run: Run) -> Trace:
        """Train as the run asks and return its trace, whatever happened: errors are in it, not raised.

        When the GPU runs out of memory the run is trained again in a fresh process, along its fallback chain. After a
        finished training come its further attempts, at the same fallback step. Raises KeyboardInterrupt, after trace
        and child have ended, and TraceError where the trace cannot be written.
        """
        path = self.folder / f"{run.stem}.jsonl"
        described = {**run.model_dump(mode="json"), "features": sorted(run.features)}
        writer = TraceWriter(path)
        writer.write(header_of(described, run.fingerprint, self.environment))
        with scratch_folder() as scratch:
            self._attempts(run, writer, scratch)
        return read(path)

    def _attempts(self, run: Run, writer: TraceWriter, scratch: Path) -> None:
        device = "cuda" if run.device != "cpu" and self.gpu else "cpu"
        try:
            require_count(run)
            dataset, data = rows.resolve(run.data)  # first: the smaller download
            weights, folder = models.resolve(run.model, allow_random=run.allow_random_weights)
        except SuiteError as error:
            writer.write(AttemptStart(purpose=TRAIN, device=device))
            writer.write(AttemptEnd(outcome=outcome_of(error), detail=str(error), seconds=0.0))
            return
        request = Request(
            run=run.model_copy(update={"data": data}),
            purpose=TRAIN,
            device=device,
            weights=weights,
            folder=folder,
            dataset=dataset,
            trace=writer.path,
            checkpoint=scratch / "checkpoint",
            saved=scratch / "saved",
            faults=self.faults,
        )
        make = partial(self._attempt, request, writer)
        why: dict[str, Any] = {}
        for trial in tries(run, device):
            if why:
                log.warning(f"{run.name}: out of memory on the GPU; again in a fresh process {_told(trial)}")
            if (end := make(TRAIN, trial, **why)).outcome == AttemptOutcome.FINISHED:
                self._further(make, run, trial)
            if end.outcome != AttemptOutcome.OUT_OF_MEMORY:
                break
            why = {"reason": AttemptReason.OUT_OF_MEMORY, "detail": end.detail}

    def _further(self, make: Callable[..., AttemptEnd], run: Run, taken: AttemptStart) -> None:
        """The attempts that the run asks for after its training, at the fallback step where that finished."""
        probes = run.probes
        if probes.reference and taken.fallback_step and taken.device == "cpu":
            make(AttemptPurpose.REFERENCE, AttemptStart(purpose=TRAIN, device="cpu"))
        if probes.repeat_steps:
            make(AttemptPurpose.REPEAT, taken)
        if probes.resume_from is not None:
            make(AttemptPurpose.RESUME, taken)
        for processes in probes.rescale_to:
            changes = rescaled(variant(run, taken.changes), processes)
            make(AttemptPurpose.RESCALE, replace(taken, changes={**taken.changes, **changes}))
        if probes.read_back:
            make(AttemptPurpose.READ_BACK, taken)
        if probes.merge:
            make(AttemptPurpose.MERGE, taken)
        if probes.memory_order:
            for name, changes in VARIANTS.items():
                make(AttemptPurpose.COMPARE, replace(taken, changes={**taken.changes, **changes}), variant=name)
        if probes.rungs:
            for trial in every_fallback_step(run, taken.device, gpu_only=probes.rungs == "gpu"):
                make(AttemptPurpose.FALLBACK_STEP, trial)

    def _attempt(
        self, shared: Request, writer: TraceWriter, purpose: AttemptPurpose, trial: AttemptStart, **about: Any
    ) -> AttemptEnd:
        """Run one attempt and write its lines; `shared` is of the run as configured, `about` more of the start."""
        run, device = variant(shared.run, trial.changes), trial.device
        if purpose in ALONE:
            run = run.model_copy(update={"parallel": None})
        torch_device = "cuda:0" if device == "cuda" else device
        on_card = device == "cuda" or (run.evaluation.device == "cuda" and purpose == TRAIN)
        cap_bytes = self.vram_cap_bytes if on_card else None
        cards = self.cards[: run.processes] if on_card else ()
        given: dict[str, Any] = {"device": torch_device, "card": ", ".join(cards) or None, "vram_cap_bytes": cap_bytes}
        writer.write(replace(trial, purpose=purpose, **given, **about))
        weights, data = shared.weights, shared.dataset
        told = f"{weights.source} weights {weights.identifier}, {data.source} data {data.identifier}"
        log.info(f"{run.name}: {purpose} {_told(trial)}, {told}")
        request = replace(
            shared,
            run=run,
            purpose=purpose,
            device=device,
            # On a machine with GPUs an attempt on the CPU sees none: merely importing bitsandbytes would take memory
            # of a card that somebody else has leased.
            cards=(cards or None) if on_card else () if self.gpu else None,
            vram_cap_bytes=cap_bytes,
        )
        watched = enumerate(cards or (None,)) if on_card else ()
        meters = [Meter(card, shared.checkpoint.with_name(f"card-{rank}")) for rank, card in watched]

        def started(process_id: int) -> None:
            for meter in meters:
                meter.watch(process_id)

        carry_out = run_here if self.in_process else partial(run_child, gpu=self.gpu)
        outcome, began = Outcome(AttemptOutcome.INTERRUPTED, "by Ctrl-C or a signal"), time.monotonic()
        try:
            outcome = carry_out(request, progress=partial(_tell_progress, shared.run), started=started)
        finally:
            end = AttemptEnd(**outcome._asdict(), seconds=time.monotonic() - began)
            writer.end_line()
            merge_traces(request, writer, [meter.stop() for meter in meters])
            writer.write(end)
        log.debug(f"{run.name}: {purpose} {end.outcome.replace('_', ' ')} after {end.seconds:.1f} s")
        if end.outcome != AttemptOutcome.FINISHED:
            log.warning(f"{run.name}: {purpose} {end.outcome.replace('_', ' ')}: {end.detail}")
        return end


def _tell_progress(run: Run, step: Step) -> None:
    last = run.training.max_steps
    if step.step % max(1, last // 10) and step.step + 1 != last:
        return
    memory = f", {step.allocated_bytes / 2**20:,.0f} MiB" if step.allocated_bytes else ""
    rate = step.tokens / max(step.seconds, 1e-9)
    log.info(f"{run.name}: step {step.step + 1}/{last}, loss {step.loss:.4f}, {rate:,.0f} tokens/s{memory}")


def _told(trial: AttemptStart) -> str:
    """Return where an attempt trains and at which fallback step: "on cuda:0 (lean)"."""
    step = f" ({trial.fallback_step})" if trial.fallback_step not in ("", trial.device) else ""
    return f"on {'cuda:0' if trial.device == 'cuda' else 'the CPU'}{step}"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a temporary folder and remove it afterwards, killed processes' first. Raises SuiteError without one."""
    _remove_orphans()
    folder = None
    with ExitStack() as stack:
        try:
            folder = Path(tempfile.mkdtemp(prefix=PREFIX))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            made = folder / "made"
            fcntl.flock(stack.enter_context(made.open("w")), fcntl.LOCK_EX)
            made.rename(folder / _OWNED)  # locked before it bears the name: nobody takes it for an orphan in between
        except OSError as error:
            where = tempfile.gettempdir() if folder else "any of the usual places"
            why = f"no temporary folder can be made in {where}: {error.strerror or error}"
            raise SuiteError(f"{why}; free some space, or set TMPDIR to a writable folder") from error
        yield folder


def _remove_orphans() -> None:
    """Remove the scratch folders that no process holds any more; those of other users stay."""
    with suppress(OSError):
        for owned in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{_OWNED}"):
            with suppress(OSError), owned.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(owned.parent, ignore_errors=True)
