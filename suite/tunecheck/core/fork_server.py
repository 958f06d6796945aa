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

    The weights are on disk by then, and importing can download: on a CPU with AVX512-BF16 bitsandbytes 0.50 asks
    `kernels`, where that is installed, for a binary of the hub while it is imported. huggingface_hub reads the variable
    once, at its own import, so it must be in the environment before the process starts; a process that imported the
    library earlier, such as this one after a download, has the constant set instead.
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
    """Return how children are made.

    With a GPU every child imports for itself: importing bitsandbytes initialises CUDA (it asks for the compute
    capability), and a process forked after that cannot use the GPU. So where a socket's path is too long.
    """
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
    """Warm up where these arguments of pytest's select a tier by its marker: its plugins and collection take 0.6 s.

    A guess: a session that finds the machine contended begins again, and one that trains nothing ends it.
    """
    marker = next((after for word, after in pairwise(arguments) if word == "-m"), "")
    asked = marker.isidentifier() and (shipped_folder() / "tiers" / f"test_{marker}.py").is_file()
    elsewhere = any(word.startswith(("-n", "--co", "--in-process")) for word in arguments)
    known = "PYTEST_ADDOPTS" not in os.environ and not any(map(os.path.exists, DRIVERS))
    if asked and known and not elsewhere:
        warm_up(gpu=False)
        atexit.register(cool_down)


def limit_openmp_spinning() -> None:
    """Make the OpenMP threads of later children sleep soon, instead of spinning, while they wait for each other.

    For a machine where others compute: a thread that spins holds the core that the one it waits for needs. Two QLoRA
    trainings at once on 2 cores: 4.3 s a step each with libgomp's own spinning, 1.65 s with this; one alone: 0.82 s and
    0.95 s (SmolLM2-135M, 2 x 64 tokens, torch 2.13.0).
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def cool_down() -> None:
    """End the fork server, if there is one. Left alone it would end too, but only after its imports, seconds later.

    multiprocessing has no public way to stop it, hence the private attributes. The next child starts another one.
    """
    from multiprocessing import forkserver

    server: Any = forkserver._forkserver
    if (pid := getattr(server, "_forkserver_pid", None)) is not None:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            server._stop()
        server._forkserver_pid = None
