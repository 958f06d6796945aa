"""What `import tunecheck` exports: load a run, train it, judge its trace, watch a training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunecheck.core.errors import SuiteError
from tunecheck.core.finding import Finding, Status
from tunecheck.core.trace import Trace
from tunecheck.core.trace import read as read_trace

if TYPE_CHECKING:
    from tunecheck.config.schema import Run

__all__ = ["Finding", "Status", "SuiteError", "Trace", "judge", "load_run", "read_trace", "train", "watch"]


def load_run(name: str, overrides: Sequence[str] = ()) -> Run:
    """Load a run by its name, its id or the path of its YAML file. `overrides` are as for --set: "training.seed=3".

    Raises SuiteError naming every problem and its place.
    """
    from tunecheck.config import find_run
    from tunecheck.config import load_run as load

    return load(find_run(name), overrides)


def train(run: Run, folder: str | Path) -> Trace:
    """Train a run in child processes and return its trace, which is also written into the folder.

    What goes wrong in the training is in the trace: `trace.main.end`. Raises SuiteError where it cannot be written, and
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
    runner = Runner(folder=path, environment=hardware.to_json(), gpu=bool(hardware.visible_gpus))
    return runner.execute(run)


def judge(trace: Trace, overrides: Sequence[str] = ()) -> list[Finding]:
    """Answer every check of the trace's run. `overrides` change limits: "checks.loss_falls.min_fall=0.2"."""
    from tunecheck.results.rejudge import checks_of

    return [check(trace) for check in checks_of(trace, overrides).values()]


def watch(trainer: Any = None, **given: Any) -> Any:
    """Return a context in which a training of your own is listened to, and judged when the block ends.

    Give a transformers Trainer, or `model=` of a loop, with its `optimizer=` and `tokenizer=` where those exist. With
    neither, a callback is returned: `Trainer(..., callbacks=[tunecheck.watch()])`. The first `steps=10` optimizer steps
    are judged; the training itself is not changed. `expect=` adds what no object declares, by the keys of
    `tunecheck watch --expect`; `ignore=` says by check why what it finds is meant; `strict=True` lets suspicions
    fail. The trace lies in `folder=`; `tell=False` does not print the report. Raises SuiteError.
    """
    if trainer is None and "model" not in given:
        from tunecheck.listen.callback import WatchCallback

        return WatchCallback(**given)
    from tunecheck.listen.context import Watch

    return Watch(trainer, **given)
