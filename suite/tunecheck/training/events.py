"""Probes listen to a training, at the moments of transformers' TrainerCallback, and write evidence into its trace."""

from __future__ import annotations

import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, get_args, get_origin

from tunecheck.core.evidence import ProbeFailed, ProbeTimes, Record, StepTimes
from tunecheck.core.out_of_memory import ran_out
from tunecheck.training.hooks import Hooks, let_through, located, nothing

if TYPE_CHECKING:  # a check of another package may import this while the configuration imports that check
    from tunecheck.training.data import Batch
    from tunecheck.training.session import Session

R = TypeVar("R", bound=Record, covariant=True)
EARLY_STEPS = 4
"""Steps in which probes look for what the script's code decides, the same in all steps: how rows are cut, say, which
positions count, and which way the loss goes."""
_working = False


def probing() -> bool:
    """Return whether what happens now is the probes' own doing. Of all threads: a backward pass has some of its own."""
    return _working


@contextmanager
def at_work() -> Iterator[None]:
    """Have what happens in the block be the probes' own doing."""
    global _working
    before, _working = _working, True
    try:
        with _uncompiled():
            yield
    finally:
        _working = before


def _uncompiled() -> AbstractContextManager[object]:
    """Have what the script compiled run as it was written: our passes would use up the versions that torch keeps."""
    if "torch._dynamo.eval_frame" not in sys.modules:
        return nullcontext()
    import torch
    from torch._C._dynamo.eval_frame import get_eval_frame_callback

    # else we are called from what is compiled
    return torch.compiler.set_stance("force_eager") if not get_eval_frame_callback() else nullcontext()


class Probe(Generic[R]):
    """Base of all probes: every moment does nothing until a subclass says otherwise.

    In brackets stand the kinds of records that it writes: `class MovementProbe(Probe[Movement])`, several joined by |.
    A probe leaves weights, gradients, modes and random state as it found them; the dispatcher sees to the last.
    """

    emits: ClassVar[tuple[type[Record], ...]]
    """These kinds: none of them can be relied on once the probe has failed."""

    runs_evaluations: ClassVar[bool] = False
    """Whether it carries out the run's own evaluations: when memory runs out in those, the run has run out of it."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for base in vars(cls).get("__orig_bases__", ()):
            if get_origin(base) is Probe:
                (kinds,) = get_args(base)
                cls.emits = get_args(kinds) or (kinds,)

    def __init__(self, emit: Callable[[R], None]) -> None:
        self.emit = emit
        self.hooks = Hooks(unless=probing)
        """In the training's own passes, none of the probes'; an error of one is recorded in the next moment."""

    def start(self, session: Session) -> None:
        """The session is built; nothing has been trained."""

    def evaluate(self, session: Session, step: int) -> None:
        """An evaluation is due before this step; the last one comes with step == max_steps."""

    def step_begin(self, session: Session, step: int, window: Sequence[Batch]) -> None:
        """These micro-batches are about to be trained on: those of all ranks, one of each in turn.

        Of a loop that is not ours they are known one by one: the window then grows until the backward pass is over.
        """

    def backward_end(self, session: Session, step: int) -> None:
        """The window's gradients are complete, unscaled, not yet clipped."""

    def step_end(self, session: Session, step: int, applied: bool) -> None:
        """The optimizer has stepped (unless the scaler skipped it) and the gradients are cleared."""

    def end(self, session: Session) -> None:
        """All steps are done and the last evaluation too."""


class Probes:
    """Hands every moment of `Probe` to every probe. A probe that raises is recorded and left out from then on."""

    def __init__(self, kinds: Sequence[type[Probe[Record]]], emit: Callable[[Record], None]) -> None:
        self._probes = [kind(emit) for kind in kinds]
        self._emit = emit
        self.aside: Callable[[], AbstractContextManager[None]] = nullcontext
        """Makes the context of every moment's work, which is not the training's own."""
        self.after_step: Callable[[int], None] = nothing
        """Called when all probes have seen the end of a step, with the number of steps that are done."""
        self._seconds: list[float] = []
        self._host_seconds: list[float] = []
        self._since = self._so_far = 0.0
        self._cost: dict[str, float] = defaultdict(float)

    def start(self, session: Session) -> None:
        self._each("start", "start", session)

    def evaluate(self, session: Session, step: int) -> None:
        self._each(f"evaluation before step {step}", "evaluate", session, step)

    def step_begin(self, session: Session, step: int, window: Sequence[Batch]) -> None:
        if self._probes:  # the window given here is this rank's own
            session.window = window = session.exchange.window(window)
        self._each(f"start of step {step}", "step_begin", session, step, window)
        self._so_far, self._since = 0.0, time.perf_counter()

    def backward_end(self, session: Session, step: int) -> None:
        with self.paused():
            self._each(f"backward of step {step}", "backward_end", session, step)

    def elapsed(self) -> float:
        """Return the seconds of the present step so far, in which the training itself was at work."""
        since, self._since = self._since, time.perf_counter()
        self._so_far += self._since - since
        return self._so_far

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave what happens in the block out of the step's time."""
        self.elapsed()
        try:
            yield
        finally:
            self._since = time.perf_counter()

    def step_end(self, session: Session, step: int, applied: bool) -> None:
        self._seconds.append(self.elapsed())
        self._host_seconds.append(_host_seconds())
        self._each(f"end of step {step}", "step_end", session, step, applied)
        self.after_step(step + 1)

    def end(self, session: Session) -> None:
        self._each("end", "end", session)
        self.close()
        if self._seconds:
            self._emit(StepTimes(seconds=tuple(self._seconds), host_seconds=tuple(self._host_seconds)))
        if self._cost:
            self._emit(ProbeTimes(seconds=dict(self._cost)))

    def close(self) -> None:
        """Remove all hooks, also after a training that raised: nobody listens any more."""
        for probe in self._probes:
            probe.hooks.remove()

    def _each(self, moment: str, method: str, session: Session, *args: Any) -> None:
        """Call this method of every probe; `moment` is what a failed one is recorded with."""
        if self._probes:
            # the last to begin watching is the first to end, so that it sees no passes of the probes before it
            probes = tuple(reversed(self._probes) if method == "backward_end" else self._probes)
            with at_work(), self.aside(), session.seen_whole():
                self._each_in_turn(probes, moment, method, session, *args)

    def _each_in_turn(
        self, probes: Sequence[Probe[Record]], moment: str, method: str, session: Session, *args: Any
    ) -> None:
        from tunecheck.training.restore import random_state  # brings torch

        for probe in probes:
            if probe.hooks.error:
                self._leave_out(probe, f"in a pass before the {moment}", probe.hooks.error)
                continue
            if getattr(type(probe), method) is getattr(Probe, method):  # nothing to do, so nothing to put back
                continue
            begun = time.perf_counter()
            try:
                with random_state(session.device):
                    getattr(probe, method)(session, *args)
            except Exception as error:
                let_through(error)
                if (out_of_memory := ran_out(error)) and probe.runs_evaluations:
                    raise  # the fallback must see it
                self._leave_out(probe, moment, located(error))
                if out_of_memory == "gpu":  # the training needs now what the probe's frames hold
                    traceback.clear_frames(error.__traceback__)
                    if session.device.type == "cuda":
                        import torch

                        torch.cuda.empty_cache()
            self._cost[type(probe).__name__] += time.perf_counter() - begun

    def _leave_out(self, probe: Probe[Record], moment: str, reason: str) -> None:
        self._probes.remove(probe)
        probe.hooks.remove()
        kinds = tuple(kind.__name__ for kind in probe.emits)
        self._emit(ProbeFailed(probe=type(probe).__name__, moment=moment, error=reason, kinds=kinds))


def _host_seconds() -> float:
    """Time a fixed piece of Python, a few tenths of a millisecond: shared hosts change their speed without a trace."""
    begun = time.perf_counter()
    for _ in range(10_000):
        pass
    return time.perf_counter() - begun
