"""Give the training process of a session a card that is not there, and break the training as $FAKE_NVML/training says.

For scripts/chaos.sh, which puts this folder and tests/ on the path of every Python process of the session. The order is
a word, and what belongs to it: "nan" (in what is trained), "forward" and "backward" (no memory is left there), "slow
SECONDS" (each operation slower than the one before by so much) and "error TEXT" (of each operation from now on, as
after an illegal access).
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("FAKE_NVML", "."))
CONTEXT_BYTES = 300 * 2**20
CACHES_NOTHING = "PYTORCH_NO_CUDA_MEMORY_CACHING" in os.environ
"""torch's own variable: each tensor's memory is asked of the driver."""
CALLS = itertools.count()
"""Operations since the run began to get slow."""


def on_the_card(work: Callable[..., None], request: Any, progress: Any) -> None:
    """Train with torch.cuda as the fake card where the attempt is on a GPU, listed by the fake driver meanwhile."""
    if request.device != "cuda":
        return work(request, progress)
    from fake_cuda import fake_card  # type: ignore[import-not-found]  # in tests/

    with (FOLDER / "processes").open("a") as file:
        file.write(f"{os.getpid()} {CONTEXT_BYTES} python3\n")

    def and_wait(step: Any) -> None:
        progress(step)
        wait()

    with fake_card(room=free_bytes, before=obey):
        work(request, and_wait)


def wait() -> None:
    """Wait with the next step until the fault is there, however busy the machine is."""
    while os.path.exists(FOLDER / "wait"):
        time.sleep(0.01)


def free_bytes() -> int:
    """Return what the fake driver says of the card's memory."""
    import pynvml

    pynvml.nvmlInit()
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).free)


def obey() -> None:
    """Do what the order says, before an operation on the card."""
    import torch

    if CACHES_NOTHING and free_bytes() == 0:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")
    path = FOLDER / "training"
    if not os.path.exists(path):
        return

    order, _, words = path.read_text().partition(" ")
    in_backward = torch._C._current_graph_task_id() != -1
    if order == "slow":
        if (calls := next(CALLS)) % 1000 == 0:
            time.sleep(calls * float(words))
    elif order == "error":
        raise torch.AcceleratorError(words)
    elif order == "nan":
        path.unlink()
        spoil_a_weight()
    elif in_backward if order == "backward" else torch.is_grad_enabled():
        path.unlink()
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


def spoil_a_weight() -> None:
    """Write a NaN into each trained tensor."""
    import gc

    import torch

    for thing in gc.get_objects():
        if isinstance(thing, torch.nn.Parameter) and thing.requires_grad:
            thing.data.view(-1)[0] = torch.nan


if "--multiprocessing-fork" in sys.orig_argv and "FAKE_NVML" in os.environ:
    from tunecheck.runner import process

    process._work = partial(on_the_card, process._work)
