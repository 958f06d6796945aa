"""How an attempt ended, in words: an error that it raised, or the exit status of a process that left none."""

import contextlib
import shutil
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import RLock
from typing import NamedTuple

from tunecheck.core import errors
from tunecheck.core.evidence import AttemptCause, AttemptOutcome
from tunecheck.core.files import is_disk_full
from tunecheck.core.helper import signal_name
from tunecheck.core.out_of_memory import exit_message, ran_out
from tunecheck.core.text import one_line
from tunecheck.core.unexpected import place_of

WRITE_FAILED_WORDS = ("file write failed", "failed writing file", "I/O error")
"""Of libraries that write without Python and give no reason, as torch.save: whether the disk is full is looked up."""
GPU_ERROR_WORDS = (
    *("illegal memory access", "illegal instruction", "misaligned address", "invalid program counter"),
    *("unspecified launch failure", "launch timed out", "unknown error"),
    *("ECC error", "hardware stack error", "NVLink error"),
)
"""Of the CUDA errors that leave a process without its GPU, those that a kernel can cause as well as the GPU. The
assertion of a kernel is none: it says that an index or a label was out of bounds."""


class Outcome(NamedTuple):
    """How an attempt ended, as in AttemptEnd."""

    outcome: AttemptOutcome
    detail: str = ""
    cause: AttemptCause | None = None


def carried_out(work: Callable[[], None], device: str, folders: Sequence[Path] = ()) -> Outcome:
    """Run the work, which writes into `folders`. Put what it raises into words; log unexpected tracebacks."""
    try:
        work()
    except errors.TraceError as error:
        return Outcome(AttemptOutcome.FAILED, str(error), AttemptCause.DISK_FULL if _full(folders) else None)
    except errors.SuiteError as error:
        cause = AttemptCause.NO_GPU if isinstance(error, errors.GpuUnusable) else None
        return Outcome(outcome_of(error), str(error), cause)
    except Exception as error:
        traceback.print_exc()
        return ending_of(error, device, folders)
    return Outcome(AttemptOutcome.FINISHED)


def outcome_of(error: errors.SuiteError) -> AttemptOutcome:
    """Return the outcome of an attempt that this error ended: a wrong request, missing weights or data, or another."""
    if isinstance(error, errors.ConfigError | errors.BadRow):
        return AttemptOutcome.MISCONFIGURED
    missing = isinstance(error, errors.WeightsUnavailable | errors.DataError)
    return AttemptOutcome.UNAVAILABLE if missing else AttemptOutcome.FAILED


def ending_of(error: BaseException, device: str, folders: Sequence[Path] = ()) -> Outcome:
    """Return how a training on this device ended that raised this; see `carried_out`."""
    lines = str(error).strip().split("\n")
    # NCCL's first line says that something failed, and the one below "Last error:" what, as too little shared memory
    last = next((lines[n : n + 2] for n in range(1, len(lines)) if "Last error:" in lines[n]), [])
    text = " ".join(lines[:1] + last)
    if (whose := ran_out(error)) == "host" and device != "cpu":
        why = f"the host is out of memory, not the GPU: {text}; a training on the CPU would take more"
        return Outcome(AttemptOutcome.FAILED, why, AttemptCause.HOST_MEMORY)
    if whose:
        cause = AttemptCause.HOST_MEMORY if whose == "host" else AttemptCause.GPU_MEMORY
        return Outcome(AttemptOutcome.OUT_OF_MEMORY, text or "the host is out of memory", cause)
    full = "" if is_disk_full(error) else _full(folders)
    if is_disk_full(error) or (full and any(words in text for words in WRITE_FAILED_WORDS)):
        why = f"the disk is full: {text}{full and f': {full}'}; free some space and run again"
        return Outcome(AttemptOutcome.FAILED, why, AttemptCause.DISK_FULL)
    unclear = "CUDA" in text and any(words in text for words in GPU_ERROR_WORDS)
    cause = AttemptCause.GPU_ERROR if unclear else AttemptCause.ERROR
    where = f" ({place_of(error)})" if error.__traceback__ else ""
    return Outcome(AttemptOutcome.FAILED, f"{type(error).__name__}: {text}{where}", cause)


def _full(folders: Sequence[Path]) -> str:
    for folder in folders:
        with contextlib.suppress(OSError):
            if shutil.disk_usage(folder).free < 1 << 20:  # what a checkpoint needs next is more
                return str(folder)
    return ""


def crash_of(exit_code: int | None, tail: str, *, began: bool, served: bool = True) -> Outcome:
    """Return why a child that sent no outcome is gone; `served` is False where its fork server is gone, too."""
    if exit_code == 1 and (line := exit_message(tail)):
        return Outcome(AttemptOutcome.OUT_OF_MEMORY, line, AttemptCause.GPU_MEMORY)
    if not served:
        return Outcome(AttemptOutcome.CRASHED, "the fork server died, and the training with it", AttemptCause.START)
    if exit_code is not None and exit_code < 0:
        name = signal_name(-exit_code)
        hint = " (the kernel's out-of-memory killer does this: look at dmesg)" if name == "SIGKILL" else ""
        cause = AttemptCause.KILLED if name in ("SIGKILL", "SIGTERM", "SIGHUP") else AttemptCause.SIGNAL
        return Outcome(AttemptOutcome.CRASHED, f"killed by {name}{hint}", cause)
    guard = 'a script that trains must do so under `if __name__ == "__main__":`, because every child process imports it'
    why = "without saying why" if began else f"before its first line; {guard}"
    return Outcome(AttemptOutcome.CRASHED, f"ended with status {exit_code} {why}", AttemptCause.EXIT)


def imported(*, quiet: bool = False) -> Outcome | None:
    """Import the libraries that train; return how the attempt ends where one of them fails, else None."""
    try:
        # A spawned child and the debugger's process have yet to import everything. Before the session exists: a
        # library that logs an exception at import, as bitsandbytes does, hands its frames, and all that they hold, to
        # log handlers.
        import tunecheck.runner.preload  # noqa: F401

        if quiet:  # no progress bars in the log
            from tqdm import tqdm  # type: ignore[import-untyped]
            from transformers.utils import logging

            # peft's merge makes one all the same, to hide it. tqdm's own lock is a named semaphore, which `os._exit`
            # would leave to the parent's resource tracker and its warning about a leak.
            tqdm.set_lock(RLock())
            logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    except Exception as error:
        traceback.print_exc()
        why = f"the libraries that train cannot be imported: {type(error).__name__}: {one_line(str(error), 300)}"
        return Outcome(AttemptOutcome.FAILED, f"{why}. What to do: run `tunecheck doctor`", AttemptCause.LIBRARIES)
    return None
