"""What `import tunecheck` exports: load a run, train it, judge its trace, watch a training."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from tunecheck.core.check import Check
from tunecheck.core.errors import MissingEvidence, NotApplicable, SuiteError
from tunecheck.core.evidence import Record
from tunecheck.core.finding import Finding, Status
from tunecheck.core.log import log, on_terminal
from tunecheck.core.trace import Trace, spelled
from tunecheck.core.trace import read as read_trace

if TYPE_CHECKING:
    from tunecheck.config.schema import Run
    from tunecheck.listen.callback import WatchCallback
    from tunecheck.listen.context import Watch
    from tunecheck.results import Verdict
    from tunecheck.training.events import Probe

__all__ = [
    "Check",
    "Finding",
    "MissingEvidence",
    "NotApplicable",
    "Probe",
    "Record",
    "Run",
    "Status",
    "SuiteError",
    "Trace",
    "Verdict",
    "Watch",
    "judge",
    "load_run",
    "read_trace",
    "train",
    "watch",
]


def load_run(name: str, overrides: Sequence[str] = ()) -> Run:
    """Load a run by its name, its id or the path of its YAML file. `overrides` are as for --set: "training.seed=3".

    Raises SuiteError naming every problem and its place.
    """
    from tunecheck.config import find_run
    from tunecheck.config import load_run as load

    return load(find_run(name), overrides)


def train(run: Run, folder: str | Path) -> Trace:
    """Train a run in child processes and return its trace, which is also written into the folder.

    What goes wrong in the training is in the trace: `trace.main.end`. Progress goes to the logger `tunecheck`, or to
    standard error where nobody has set up logging. Raises SuiteError where it cannot be written, and
    where a GPU is there that the run cannot use.
    """
    from tunecheck.hardware import probe
    from tunecheck.runner import Runner
    from tunecheck.session.admission import require_usable

    hardware = probe()
    if run.uses_gpu:
        require_usable(hardware)
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    with nullcontext() if log.hasHandlers() else on_terminal():
        return Runner(folder=path, environment=spelled(hardware), gpu=bool(hardware.visible_gpus)).execute(run)


def judge(trace: Trace, overrides: Sequence[str] = ()) -> list[Finding]:
    """Answer every check of the trace's run. `overrides` change limits: "checks.loss_falls.min_fall=0.2"."""
    from tunecheck.results.rejudge import checks_of

    return [check(trace) for check in checks_of(trace, overrides).values()]


@overload
def watch(trainer: None = None, *, model: None = None, **given: Any) -> WatchCallback: ...


@overload
def watch(
    trainer: Any = None,
    *,
    model: Any = None,
    optimizer: Any = None,
    tokenizer: Any = None,
    steps: int = 10,
    expect: Mapping[str, Any] | None = None,
    ignore: Mapping[str, str] | None = None,
    strict: bool = False,
    folder: str | Path | None = None,
    tell: bool = True,
) -> Watch: ...


def watch(trainer: Any = None, *, model: Any = None, **given: Any) -> Any:
    """Listen to a training of your own, and judge it when the block ends.

    Give a transformers Trainer, or the `model` of a loop with its `optimizer` (or a list of them) and `tokenizer`. With
    neither, return a callback: `Trainer(..., callbacks=[tunecheck.watch()])`. The first `steps` optimizer steps are
    judged; the training itself is not changed. `expect` adds what no object declares, by the keys of `tunecheck watch
    --expect`. `ignore` says by check why what it finds is meant. `strict` lets suspicions fail. The trace lies in
    `folder`; with `tell=False` no report is printed. Raises SuiteError.
    """
    if trainer is None and model is None:
        from tunecheck.listen.callback import WatchCallback

        return WatchCallback(**given)
    from tunecheck.listen.context import Watch

    return Watch(trainer, model=model, **given)


_ELSEWHERE = {
    "Probe": "tunecheck.training.events",
    "Run": "tunecheck.config.schema",
    "Verdict": "tunecheck.results",
    "Watch": "tunecheck.listen.context",
}
"""Exported types whose modules load checks of other packages, which import this one."""


def __getattr__(name: str) -> object:
    """Import a type of another module at its first use."""
    if name not in _ELSEWHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_ELSEWHERE[name]), name)
