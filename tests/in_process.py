"""A run that is trained in the test's own process, so that a test can reach into it."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

from tunecheck.config.schema import Run
from tunecheck.core.trace import Trace
from tunecheck.runner import Runner


def forget_earlier_trainings() -> None:
    """What they left would count as memory of the next one, and be walked with the libraries' objects at every step.

    A child begins likewise. Three of four seconds of such a training were that walk.
    """
    gc.collect()
    gc.freeze()


def train_here(run: Run, folder: Path, *faults: Any, gpu: bool = False) -> Trace:
    """Return the trace of this run."""
    forget_earlier_trainings()
    runner = Runner(folder=folder, environment={}, gpu=gpu, in_process=True, faults=faults)
    return runner.execute(run)
