"""The fork server: a process with the libraries of a training loaded, of which each training is a copy.

A child is made in 10 ms instead of 4 s. Standard library alone: it is started before anything else is imported.
"""

import atexit
import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal

from tunecheck.core import interrupts
from tunecheck.core.paths import shipped_folder

OFFLINE = "HF_HUB_OFFLINE"
PRELOAD = "tunecheck.runner.warm"
LONGEST_SOCKET_FOLDER = 70
"""Bytes of the temporary folder's path below which the fork server's socket fits: the system allows it 107 in all."""
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(256 << 20)}
"""Bytes for glibc's malloc in children: blocks below the first and so much freed memory stay theirs. By itself it gives
back what a forward pass has freed, and the kernel clears the pages for the next one: 1.7 s of system time in a quick
run, 1.0 s with these, 10 MiB more of 1,300 resident (EPYC, one thread, 2026-11-23)."""
DRIVERS = "/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/nvhost-ctrl-gpu", "/dev/dxg", "/proc/driver/nvidia"
"""One of them is there where a process may find a GPU: under Linux, on a Jetson, under WSL."""


@contextlib.contextmanager
def hub_forbidden() -> Iterator[None]:
    """Forbid the Hugging Face hub to every process started in the block, and to this one.

    Importing can download: on a CPU with AVX512-BF16 bitsandbytes 0.50 asks `kernels` for a binary of the hub.
    huggingface_hub reads the variable once, at its import; where that was earlier, its constant is set instead.
    """
    kept = os.environ.get(OFFLINE)
    constants: Any = sys.modules.get("huggingface_hub.constants")
    kept_constant = getattr(constants, OFFLINE, None)
    os.environ[OFFLINE] = "1"
    if constants is not None:
        constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        if constants is not None:
            constants.HF_HUB_OFFLINE = kept_constant
        if kept is None:
            del os.environ[OFFLINE]
        else:
            os.environ[OFFLINE] = kept


def start_method(gpu: bool) -> Literal["forkserver", "spawn"]:
    """Return how children are made. Importing bitsandbytes initialises CUDA, and no process forked then can use it."""
    return "spawn" if gpu or len(os.fsencode(tempfile.gettempdir())) > LONGEST_SOCKET_FOLDER else "forkserver"


def warm_up(gpu: bool) -> None:
    """Start the fork server's imports meanwhile, and return at once, also when it runs; with a GPU there is none."""
    for variable, threshold in ALLOCATOR.items():
        os.environ.setdefault(variable, threshold)
    if start_method(gpu) == "forkserver":
        from multiprocessing import forkserver, resource_tracker

        multiprocessing.get_context("forkserver").set_forkserver_preload([PRELOAD])
        with interrupts.blocked():
            resource_tracker.ensure_running()  # which the server would start, and unblock the signals after it
        with hub_forbidden(), interrupts.blocked():
            forkserver.ensure_running()


def head_start(arguments: Sequence[str]) -> None:
    """Warm up where pytest's arguments select a tier by its marker, a guess: plugins and collection take 0.6 s."""
    marker = next((after for word, after in pairwise(arguments) if word == "-m"), "")
    asked = marker.isidentifier() and (shipped_folder() / "tiers" / f"test_{marker}.py").is_file()
    elsewhere = any(word.startswith(("-n", "--co", "--in-process")) for word in arguments)
    if asked and "PYTEST_ADDOPTS" not in os.environ and not any(map(os.path.exists, DRIVERS)) and not elsewhere:
        warm_up(gpu=False)
        atexit.register(cool_down)


def limit_openmp_spinning() -> None:
    """Make the OpenMP threads of later children sleep soon, instead of spinning, on a core that another thread needs.

    Two QLoRA trainings at once on 2 cores: 4.3 s a step each with libgomp's own spinning, 1.65 s with this; one alone:
    0.82 s and 0.95 s (SmolLM2-135M, 2 x 64 tokens, torch 2.13.0).
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def cool_down() -> None:
    """End the fork server, if there is one; by private attributes, since multiprocessing has no public way."""
    from multiprocessing import forkserver

    server: Any = forkserver._forkserver
    if (pid := getattr(server, "_forkserver_pid", None)) is not None:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            server._stop()
        server._forkserver_pid = None
