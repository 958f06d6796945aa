"""The moments of a training that is not ours, for the probes. An error here ends the listening, never the training."""

import hashlib
import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Self

import torch

from tunecheck.checks import problem_with
from tunecheck.config.schema import Run
from tunecheck.core import evidence
from tunecheck.core.check import some
from tunecheck.core.premises import Premise, Source, facts
from tunecheck.core.trace import TraceWriter, header_of
from tunecheck.listen import loaders, provenance, saves, truncation
from tunecheck.listen.adapters import ranks_scored
from tunecheck.listen.declared import weights_drawn
from tunecheck.listen.expectations import declare
from tunecheck.listen.options import Options, new_trace_file, rank_and_processes, trace_file
from tunecheck.models.layer_names import base_of
from tunecheck.probes import ANY_OBJECTIVE, WATCHED
from tunecheck.probes.reference.measures import norm
from tunecheck.runner.outcome import Outcome, ending_of
from tunecheck.runner.setup import setup_of
from tunecheck.training import restore
from tunecheck.training.data import Batch
from tunecheck.training.events import Probes, at_work
from tunecheck.training.hooks import inner_optimizer, let_through, located
from tunecheck.training.session import Session


@contextmanager
def _unseen(model: Any) -> Iterator[None]:
    """Hide the probes' writes to weights from autograd, whose graph may hold them already, and drop warnings."""
    filters: Any = warnings.filters
    dropping = ("ignore", None, Warning, None, 0)  # unlike catch_warnings, this forgets none that was shown
    with restore.without_repacking(model), restore.unprinted(), restore.exact_products(), ExitStack() as stack:
        filters.insert(0, dropping)
        stack.callback(filters.remove, dropping)
        for weight in model.parameters():
            stack.enter_context(torch.autograd.grad_mode._unsafe_preserve_version_counter(weight))
        yield


JUDGING = {
    *("id", "sources", "premises", "ignore", "strict"),
    *("checks", "expected", "trained", "data", "evaluation", "probes"),
}
"""Keys of a watched run that say nothing of the training: its name, and how it is judged."""


def fingerprint_of(run: Run, session: Session, processes: int) -> str:
    """Return the digest (16 hex digits) of the declared training, by which its sessions are comparable."""
    model, optimizer = session.model, inner_optimizer(session.optimizer)
    groups = [{**group, "params": len(group["params"])} for group in optimizer.param_groups]
    settings = {
        **run.model_dump(mode="json", warnings=False, exclude=JUDGING),
        "class": type(base_of(model)).__name__,
        "learns": sorted((name, *p.shape) for name, p in model.named_parameters() if p.requires_grad),
        "optimizer": [type(optimizer).__name__, groups],
        "processes": processes,
    }

    def spelled(held: Any) -> Any:
        """A rate may be a tensor, and an object of the script's own has no text to keep."""
        return float(held) if getattr(held, "numel", lambda: 0)() == 1 else type(held).__name__

    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=spelled).encode()).hexdigest()[:16]


UNKNOWN = {"tier": "watch", "model": {"name": "unknown"}}
"""Run of a training of which nothing is declared, or nothing could be read."""
_trainings = 0


class Listener:
    """Listens to one training: `begin`, then for each step `step_begin`, `backward_end`, `step_end`, then `close`.

    A derived class hooks the training, in `attach`, fills in the step under way, and says when its moments come.
    """

    def __init__(self, options: Options) -> None:
        global _trainings
        _trainings += 1
        self.options, self._process = options, os.getpid()
        rank, self._processes = rank_and_processes()
        self.is_first = not any(trace_file(options, number, rank).exists() for number in range(1, _trainings))
        """Whether this process heard no other training of the command before."""
        self.path = new_trace_file(options, _trainings, rank)
        self._writer: TraceWriter | None = TraceWriter(self.path)
        self.run_id = self.path.stem.removeprefix("watch-")
        self._probes: Probes | None = None
        self._session: Session | None = None
        self._started = time.monotonic()
        self._begun = self._ended = False
        self._steps = 0
        self._open: dict[str, str] = {}
        self._added: list[evidence.Record] = []
        """The attempts that are to follow the trace's end."""
        self._drawn: Callable[[], evidence.Record] | None = None
        """What tells the rows that the loader has drawn, where several processes train."""
        self._learning: Learning | None = None
        """What learnt when the training began, where the script alone says what learns."""
        self.step = 0
        self.window: list[Batch] = []
        self.losses: list[Any] = []
        self.norm: Any = None
        """Norm that the training itself computed to clip; None without."""
        self.rate = self.own_norm = math.nan
        self.begun = self.done_backward = self.without_rate = False

    def attach(self) -> None:
        """Hook the training."""

    def detach(self) -> None:
        """Leave it as it was."""

    def __enter__(self) -> Self:
        self.tried(self.attach)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.tried(self.detach)
        self.close(error)
        if self.ends_early:
            self.leave()

    @property
    def listening(self) -> bool:
        return self._probes is not None

    @property
    def own(self) -> bool:
        """Whether this process began the training: one that was forked in it writes nothing of it."""
        return self._process == os.getpid()

    @property
    def ends_early(self) -> bool:
        """Whether this process is one of `--twice` that ends with its steps."""
        return self.options.purpose != "train"

    def leave(self) -> None:
        """End this process now: what the script does after its training is not done twice."""
        self.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def begin(self, session: Session, optimizer: str) -> None:
        """Write what is declared, and let the probes look at the model before its first step."""
        run: Any = session.run
        declare(run, self.options.expect, {name: p.numel() for name, p in session.model.named_parameters()})
        run.premises.update(facts(self.options.not_twice))
        limits = {name: own for name, own in self.options.limits.items() if problem_with(name, run.features) is None}
        run.ignore, run.strict, run.checks = self.options.ignore, self.options.strict, limits
        again = {"repeat_steps": self.options.repeat_steps, "resume_from": self.options.resume_from}
        run.probes = run.probes.model_copy(update=again)
        provenance.training_begins(session.model)
        self._session = session
        described = {**run.model_dump(mode="json", warnings=False), "features": sorted(run.features)}
        self._write_header(described, str(session.device), fingerprint_of(run, session, self._processes))
        self.emit(setup_of(session, None, declared_optimizer=optimizer))
        probes = WATCHED if run.holds(Premise.CAUSAL_LM) else ANY_OBJECTIVE
        self._probes = Probes(() if self.ends_early else probes, self.emit)
        self.look(evidence.StateLoaded, lambda: provenance.loads_of(session.model))
        self.look(evidence.WeightsDrawn, lambda: weights_drawn(session.model))
        self._drawn = loaders.of_training()
        self._probes.aside = lambda: _unseen(session.model)
        declared = run.fact(Premise.TRAINED_SET_DECLARED).source in (Source.DECLARED, Source.EXPECTED)
        if run.holds(Premise.CAUSAL_LM) and not declared:
            self._learning = Learning(session.model)
        self._probes.start(session)
        if not self.ends_early:  # what is written once the training is over follows its end
            saves.watch(session.model, lambda seen: self.add(seen) if self._ended else self.emit(seen))

    def _tell_draws(self) -> None:
        if self._drawn is not None:
            self.emit(self._drawn())

    def look(self, kind: type[evidence.Record], call: Callable[[], Iterable[evidence.Record]]) -> None:
        """Write what the listener finds by passes of its own, between those of the training; else a ProbeFailed."""
        if self._probes is None or self._session is None:
            return
        try:
            model, device, pause = self._session.model, self._session.device, self._probes.paused
            with pause(), at_work(), _unseen(model), restore.random_state(device):
                self.emit(*call())
        except Exception as error:
            let_through(error)
            why, kinds = located(error), (kind.__name__,)
            self.emit(evidence.ProbeFailed(probe="Listener", moment="look", error=why, kinds=kinds))

    def _write_header(self, run: dict[str, Any], device: str, fingerprint: str = "") -> None:
        self._begun, self._device = True, device
        python, command = sys.version.split()[0], self.options.command
        environment = {"python": python, "command": command, "processes": self._processes}
        start = evidence.AttemptStart(purpose=evidence.AttemptPurpose.TRAIN, device=device)
        self.emit(header_of(run, fingerprint, environment), start)

    def emit(self, *records: evidence.Record) -> None:
        """Write these records."""
        if self._writer is not None and self.own:
            self._writer.write(*records)

    def add(self, record: evidence.Record, seconds: float = 0.0) -> None:
        """Write this record behind the trace's end, as an attempt of its own, as soon as the training is over."""
        purpose = evidence.AttemptPurpose["MERGE" if isinstance(record, evidence.Merged) else "READ_BACK"]
        end = evidence.AttemptEnd(outcome=evidence.AttemptOutcome.FINISHED, detail="", seconds=seconds)
        self._added += [evidence.AttemptStart(purpose=purpose, device=self._device), record, end]
        if self._ended:
            self._append_added()

    def read_back_saves(self, model: Any, ids: Any) -> None:
        """Have what the script merges and saves from now on read back on these tokens; look at the adapters before."""
        saves.PRODUCTS[model] = saves.Product(self.add, ids.cpu(), lambda: self.tried(self.end_of_listening))

    def _append_added(self) -> None:
        added, self._added = self._added, []
        if added and self.own:
            TraceWriter(self.path).write(*added)

    def left_open(self, reasons: Mapping[Premise, str]) -> None:
        """Have these premises open, for these reasons, which only the course of the training told."""
        fresh: dict[str, str] = {premise: reason for premise, reason in reasons.items() if premise not in self._open}
        self._open |= fresh
        if fresh:
            self.emit(evidence.PremisesOpen(reasons=fresh))

    def step_begin(self) -> None:
        """The window is about to be trained on; where other tensors learn by it, listening ends before."""
        self.losses, self.norm, self.done_backward, self.begun = [], None, False, True
        if self._probes is None or self._session is None:
            return
        if self._learning is not None and (told := self._learning.changed()):
            why = f"at step {self.step} {told}, which no object declares: only earlier steps are judged"
            self.left_open({Premise.TRAINED_SET_DECLARED: why})
            with self._learning.restored():
                self.end_of_listening()
            return
        self._probes.step_begin(self._session, self.step, self.window)

    def backward_end(self) -> None:
        """The window's gradients are complete, unscaled, not yet clipped; `rate` is that of the present step."""
        self.done_backward = True
        if self._probes is None or self._session is None:
            return
        with self._probes.paused():
            norms = [norm(p.grad) for p in self._session.model.parameters() if p.grad is not None]
            self.own_norm = math.hypot(*norms) if norms else 0.0
        training: Any = self._session.run.training
        if training._rate is not None:  # of a schedule without a closed form
            training._rate = self.rate
        self._probes.backward_end(self._session, self.step)

    def step_end(self, *, applied: bool, supervised_tokens: int | None = None) -> None:
        """The optimizer has stepped, on so many tokens by the training's own count. After the last step all ends."""
        self.begun = False
        if self._probes is None or self._session is None:
            return
        seconds, own = self._probes.elapsed(), sum(batch.supervised_tokens for batch in self.window)
        self._steps += 1
        step = evidence.Step(
            step=self.step,
            loss=float(sum(self.losses)),
            learning_rate=self.rate,
            gradient_norm=self.own_norm if self.norm is None else float(self.norm),
            supervised_tokens=own if supervised_tokens is None else supervised_tokens,
            tokens=sum(batch.tokens for batch in self.window),
            applied=applied,
            seconds=seconds,
            without_rate=self.without_rate,
        )
        self.emit(step)
        self._probes.step_end(self._session, self.step, applied)
        if self.step + 1 >= self._session.run.training.max_steps:
            self.end_of_listening()

    def end_of_listening(self) -> None:
        """All steps that are listened to are done; nothing of the training is held any more."""
        probes, self._probes = self._probes, None
        session, self._session, self._learning = self._session, None, None
        if probes is not None and session is not None:
            probes.end(session)
            saves.trained(session.model)
            if (scored := ranks_scored(session.model, self._steps)) is not None:
                self.emit(scored)
            self.emit(*loaders.batches_of_workers(), *truncation.texts_cut())
            if self.options.twice:
                learnt = (pair for pair in session.model.named_parameters() if pair[1].requires_grad)
                self.emit(evidence.Trained(norms={name: norm(tensor) for name, tensor in learnt}, scaler=""))
            self._tell_draws()
            self.emit(evidence.WindowEnded(steps=self._steps))

    def close(self, error: BaseException | None = None) -> None:
        """The training has returned, or raised this."""
        if self._ended:
            return
        self._ended = True
        self.tried(self.end_of_listening)
        self.tried(self._tell_draws)  # of the passes that came after the steps that were listened to
        end = Outcome(evidence.AttemptOutcome.FINISHED) if error is None else ending_of(error, "cpu")
        if isinstance(error, KeyboardInterrupt):
            end = Outcome(evidence.AttemptOutcome.INTERRUPTED, "by Ctrl-C")
        seconds = time.monotonic() - self._started
        if not self._begun:  # it ended before its first step
            self.tried(lambda: self._write_header(dict(UNKNOWN), ""))
        self.tried(lambda: self.emit(evidence.AttemptEnd(**end._asdict(), seconds=seconds)))
        if self._writer is not None:
            self.tried(self._append_added)
        self._writer = self._session = None

    def tried(self, call: Callable[[], object]) -> None:
        """Call this; an error of it ends the listening and leaves the training alone."""
        try:
            call()
        except Exception as error:
            self.failed(located(error))
            let_through(error)

    def failed(self, reason: str) -> None:
        """Record that this training is listened to no longer."""
        probes, self._probes = self._probes, None
        if probes is not None:
            probes.close()
        print(f"tunecheck: stopped watching: {reason}", file=sys.stderr)
        kinds = tuple(sorted({kind.__name__ for probe in WATCHED for kind in probe.emits} | {"Step"}))
        try:
            if not self._begun:  # what the training declares could not be read
                self._write_header(dict(UNKNOWN), "")
            self.emit(evidence.ProbeFailed(probe="Listener", moment="listening", error=reason, kinds=kinds))
        except Exception:
            self._writer = None


class Learning:
    """What of a model learns at a moment: which tensors, and which adapters are active."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._names = self._now()
        self._active = {name: list(layer.active_adapters) for name, layer in restore.adapted_layers(model).items()}

    def _now(self) -> set[str]:
        return {name for name, parameter in self._model.named_parameters() if parameter.requires_grad}

    def changed(self) -> str:
        """Return in words what learns now that did not then, and the other way round; "" where it is the same."""
        now = self._now()
        more, fewer = sorted(now - self._names), sorted(self._names - now)
        told = [f"{len(more)} tensors start to train ({some(more, 1)})"] if more else []
        told += [f"{len(fewer)} stop training ({some(fewer, 1)})"] if fewer else []
        return " and ".join(told)

    def restored(self) -> AbstractContextManager[None]:
        """Have the same learn as then in the block."""
        layers = restore.adapted_layers(self._model).items()
        active = [(layer, "_active_adapter", self._active[name]) for name, layer in layers if name in self._active]
        learns = ((p, "requires_grad", name in self._names) for name, p in self._model.named_parameters())
        return restore.having([*active, *learns])
