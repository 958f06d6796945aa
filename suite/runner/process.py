"""A training child as a process: start it, listen to it, tell apart how it ended, and leave nothing behind."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import gc
import multiprocessing
import os
import shutil
import signal
import sys
import sysconfig
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal, NamedTuple, TextIO

import psutil

import suite
from suite.core.errors import ConfigError, DataError, SuiteError, TraceError, WeightsUnavailable
from suite.core.evidence import AttemptCause, AttemptEnd, AttemptOutcome, Step
from suite.core.helper import die_with_parent, signal_name
from suite.core.out_of_memory import exit_message, ran_out
from suite.runner.card import show_only
from suite.runner.child import Request, carry_out

PACKAGE = Path(suite.__file__).parent
TAIL_LINES = 20
NO_GUARD = 'a script that trains must do it under `if __name__ == "__main__":`, since every child imports it'
OFFLINE = "HF_HUB_OFFLINE"
PRELOAD = "suite.runner.preload"
"""What the fork server imports before the first child."""
LONGEST_SOCKET_FOLDER = 70
"""Bytes of the temporary folder's path below which the fork server's socket fits: the system allows it 107 in all."""
GRACE_SECONDS = 2.0
"""Between asking a child to end and killing it; the whole session must be gone within 5 s of a SIGTERM."""

FULL_BYTES = 1 << 20
"""A file system with less free space than this is full: what a checkpoint needs next is more."""
DISK_FULL_WORDS = ("No space left on device", "os error 28", "Disk quota exceeded")
"""Of libraries that write files without Python, such as safetensors."""
WRITE_FAILED_WORDS = ("file write failed", "failed writing file", "I/O error")
"""Likewise, without a reason; torch.save writes so. Whether the disk is full is then looked up."""


class Outcome(NamedTuple):
    """How an attempt ended, as in AttemptEnd."""

    outcome: AttemptOutcome
    detail: str = ""
    cause: AttemptCause | None = None


GONE = Outcome(AttemptOutcome.CRASHED)
"""Of a child that ended without an outcome: why is found out from its exit status."""


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
    """Return how children are made. A fork server with the libraries loaded makes a child in 10 ms instead of 4 s.

    With a GPU every child imports for itself: importing bitsandbytes initialises CUDA (it asks for the compute
    capability), and a process forked after that cannot use the GPU. So where a socket's path is too long.
    """
    return "spawn" if gpu or len(os.fsencode(tempfile.gettempdir())) > LONGEST_SOCKET_FOLDER else "forkserver"


def warm_up(gpu: bool) -> None:
    """Start the fork server's imports while the parent does something else; return at once, also when it runs."""
    if start_method(gpu) == "forkserver":
        from multiprocessing import forkserver

        multiprocessing.get_context("forkserver").set_forkserver_preload([PRELOAD])
        with hub_forbidden():
            forkserver.ensure_running()


def limit_openmp_spinning() -> None:
    """Make the OpenMP threads of later children sleep soon, instead of spinning, while they wait for each other.

    For a machine where others compute: a thread that spins holds the core that the one it waits for needs. Two QLoRA
    trainings at once on 2 cores: 4.3 s a step each with libgomp's own spinning, 1.65 s with this; one alone: 0.82 s and
    0.95 s (SmolLM2-135M, 2 x 64 tokens, torch 2.13.0).
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def cool_down() -> None:
    """End the fork server, if there is one. Left alone it would end too, but only after its imports, seconds later.

    multiprocessing has no public way to stop it, hence the private attributes.
    """
    from multiprocessing import forkserver

    server = forkserver._forkserver
    if (pid := getattr(server, "_forkserver_pid", None)) is not None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def run_child(
    request: Request,
    *,
    gpu: bool,
    log: Path,
    deadline_seconds: float,
    progress: Callable[[Step], None],
    started: Callable[[int], None] = lambda process_id: None,
) -> AttemptEnd:
    """Train in a fresh process and return how it ended. The child is gone when this returns or raises.

    `started` is given its process id.
    """
    warm_up(gpu)
    context: Any = multiprocessing.get_context(start_method(gpu))
    receiver, sender = context.Pipe(duplex=False)
    log_start = log.stat().st_size if log.exists() else 0
    process = context.Process(target=child_main, args=(request, sender, log), daemon=True)
    begun = time.monotonic()
    try:
        with hub_forbidden():  # a spawned child imports for itself
            process.start()
    except (OSError, EOFError) as error:  # no process left, no memory for one, or the fork server died at this moment
        receiver.close()
        sender.close()
        why = f"the training process could not be started: {type(error).__name__}: {error}"
        return _ended(Outcome(AttemptOutcome.CRASHED, why, AttemptCause.START), begun)
    sender.close()
    outcome: Outcome | None = None
    try:
        started(process.pid)
        outcome = _listen(process, receiver, begun + deadline_seconds, progress)
        if outcome is None:
            _dump_stacks(process)
            outcome = Outcome(
                AttemptOutcome.HUNG,
                f"not done after {deadline_seconds:.0f} s (the run's deadline); its stacks are in the log",
                AttemptCause.DEADLINE,
            )
        served = _server_alive()
    finally:
        _end(process)
        receiver.close()
    tail = "" if outcome.outcome == AttemptOutcome.FINISHED else _tail(log, log_start)
    if outcome == GONE:
        outcome = _crash(process.exitcode, tail, began=log.exists(), served=served)
    return _ended(outcome, begun, tail)


def _ended(outcome: Outcome, begun: float, tail: str = "") -> AttemptEnd:
    return AttemptEnd(
        outcome=outcome.outcome,
        detail=outcome.detail,
        seconds=time.monotonic() - begun,
        log_tail=tail,
        cause=outcome.cause,
    )


def _server_alive() -> bool:
    """Return whether the fork server lives; True where none is used.

    It is looked at, not waited for: multiprocessing reaps it itself when it starts the next one.
    """
    from multiprocessing import forkserver

    pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
    if pid is None:
        return True
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def run_here(request: Request, progress: Callable[[Step], None]) -> AttemptEnd:
    """The same in this process, for a debugger: no deadline, no protection from crashes."""
    started = time.monotonic()
    if request.device == "cuda":  # CUDA reads it once a process, so nothing is hidden for an attempt on the CPU
        show_only(request.card)
    with hub_forbidden():
        outcome = _outcome_of(lambda: _work(request, progress), request.device, _written(request))
    _give_back()
    return _ended(outcome, started)


def _give_back() -> None:
    """What this process no longer needs of a card is the next attempt's: a child's goes with it."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def child_main(request: Request, connection: Connection, log: Path) -> None:
    """The child's main function: output to the log, every step and the outcome to the parent."""
    os.setpgrp()  # so that the parent can end whatever this process starts, and Ctrl-C reaches the parent alone
    die_with_parent()
    show_only(request.card)
    with _log_file(log) as file:
        os.dup2(file.fileno(), sys.stdout.fileno() if sys.stdout else 1)
        os.dup2(file.fileno(), sys.stderr.fileno() if sys.stderr else 2)
        faulthandler.enable(file)
        faulthandler.register(signal.SIGUSR1, file, all_threads=True)
        tempfile.tempdir = os.environ["TMPDIR"] = str(request.checkpoint.parent)  # removed, however this process ends
        os.environ[OFFLINE] = "1"  # already there, but for a fork server that somebody else had started
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        _quiet_libraries()
        outcome = _outcome_of(lambda: _work(request, connection.send), request.device, _written(request))
        file.flush()
        with contextlib.suppress(BrokenPipeError):
            connection.send(outcome)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)  # everything is written; taking torch apart in order would cost another half second


def _log_file(log: Path) -> TextIO:
    """Open the log; where it cannot be, the output is dropped, and the trace will tell whether the folder is full."""
    try:
        return log.open("a")
    except OSError:
        return open(os.devnull, "a")


def _work(request: Request, progress: Callable[[Any], None]) -> None:
    # A spawned child and the debugger's process have yet to import everything. Before the session exists: a library
    # that logs an exception at import (bitsandbytes does) hands its frames, and all that they hold, to log handlers.
    import suite.runner.preload  # noqa: F401

    carry_out(request, progress)


def _written(request: Request) -> tuple[Path, ...]:
    """The folders that the attempt writes into."""
    return (request.checkpoint.parent, request.trace.parent)


def _outcome_of(work: Callable[[], None], device: str, folders: Sequence[Path] = ()) -> Outcome:
    """Run the work and put whatever it raises into words; unexpected errors leave their traceback in the log.

    `folders` are those that it writes into.
    """
    try:
        work()
    except TraceError as error:
        return Outcome(AttemptOutcome.FAILED, str(error), AttemptCause.DISK_FULL if _full(folders) else None)
    except SuiteError as error:
        return Outcome(outcome_of(error), str(error))
    except Exception as error:
        traceback.print_exc()
        return _classify(error, device, folders)
    return Outcome(AttemptOutcome.FINISHED)


def outcome_of(error: SuiteError) -> AttemptOutcome:
    """The outcome of an attempt that this error ended: a wrong request, missing weights or data, or something else."""
    if isinstance(error, ConfigError):
        return AttemptOutcome.MISCONFIGURED
    return AttemptOutcome.UNAVAILABLE if isinstance(error, WeightsUnavailable | DataError) else AttemptOutcome.FAILED


def _classify(error: Exception, device: str, folders: Sequence[Path] = ()) -> Outcome:
    text = str(error).strip().split("\n")[0]
    whose = ran_out(error)
    if whose == "host" and device != "cpu":
        why = f"the host is out of memory, not the GPU: {text}; a training on the CPU would take more"
        return Outcome(AttemptOutcome.FAILED, why, AttemptCause.HOST_MEMORY)
    if whose:
        cause = AttemptCause.HOST_MEMORY if whose == "host" else AttemptCause.GPU_MEMORY
        return Outcome(AttemptOutcome.OUT_OF_MEMORY, text or "the host is out of memory", cause)
    if full := _disk_full(error, text, folders):
        return Outcome(
            AttemptOutcome.FAILED, f"the disk is full: {full}; free some space and run again", AttemptCause.DISK_FULL
        )
    return Outcome(AttemptOutcome.FAILED, f"{type(error).__name__}: {text} ({_place(error)})", AttemptCause.ERROR)


def _disk_full(error: Exception, text: str, folders: Sequence[Path]) -> str:
    """Return the error's words, and the full folder where they name none; empty for an error of another kind."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return str(error)
    if any(words in text for words in DISK_FULL_WORDS):
        return text
    full = _full(folders)
    return f"{text}: {full}" if full and any(words in text for words in WRITE_FAILED_WORDS) else ""


def _full(folders: Sequence[Path]) -> str:
    """Return the first of these folders whose file system is full, as text; empty when none is."""
    for folder in folders:
        with contextlib.suppress(OSError):
            if shutil.disk_usage(folder).free < FULL_BYTES:
                return str(folder)
    return ""


def _place(error: Exception) -> str:
    """Return file and line of the innermost frame of this package or of the user's code: "training/native.py:88".

    Frames of installed libraries are left out: a wrong tensor ends deep inside of torch, its cause is the call.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_library(frame.filename)]
    frame = (own or frames)[-1]
    return f"{'/'.join(Path(frame.filename).parts[-2:])}:{frame.lineno}"


def _is_library(filename: str) -> bool:
    if filename.startswith("<"):
        return True
    path = Path(filename)
    if path.is_relative_to(PACKAGE):  # which lies in site-packages itself where it was installed from a wheel
        return False
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return bool(installed) or path.is_relative_to(sysconfig.get_paths()["stdlib"])


def _listen(process: Any, receiver: Connection, deadline: float, progress: Callable[[Step], None]) -> Outcome | None:
    """Pass steps on until the outcome arrives; GONE when the child ended without one, None at the deadline."""
    while (left := deadline - time.monotonic()) > 0:
        wait([receiver, process.sentinel], timeout=min(left, 1.0))
        while receiver.poll():
            try:
                message = receiver.recv()
            except EOFError:
                process.join(GRACE_SECONDS)
                return GONE
            if isinstance(message, Step):
                progress(message)
            else:
                return Outcome(*message)
        if not process.is_alive():
            return GONE
    return None


def _crash(exit_code: int | None, tail: str, *, began: bool, served: bool = True) -> Outcome:
    """Return why a child that sent no outcome is gone, from its exit status and the end of its log.

    `served` is False where the fork server, whose child it was and which alone knows its status, is gone too.
    """
    if exit_code == 1 and (line := exit_message(tail)):
        return Outcome(AttemptOutcome.OUT_OF_MEMORY, line, AttemptCause.GPU_MEMORY)
    if not served:
        return Outcome(AttemptOutcome.CRASHED, "the fork server died, and the training with it", AttemptCause.START)
    if exit_code is not None and exit_code < 0:
        name = signal_name(-exit_code)
        hint = " (the kernel's out-of-memory killer does this: look at dmesg)" if name == "SIGKILL" else ""
        cause = AttemptCause.KILLED if name in ("SIGKILL", "SIGTERM", "SIGHUP") else AttemptCause.SIGNAL
        return Outcome(AttemptOutcome.CRASHED, f"killed by {name}{hint}", cause)
    why = "without saying why" if began else f"before its first line; {NO_GUARD}"
    return Outcome(AttemptOutcome.CRASHED, f"ended with status {exit_code} {why}", AttemptCause.EXIT)


def _end(process: Any) -> None:
    """Make sure that the child and its group are gone."""
    process.join(0.1)
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not process.is_alive():
            break
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        process.join(GRACE_SECONDS)


def _dump_stacks(process: Any) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGUSR1)
    time.sleep(0.5)


def _tail(log: Path, start: int) -> str:
    """The log's last lines since `start`; "" from a child that ended before it could open its log."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode("utf-8", "replace").splitlines()
    return "\n".join(lines[-TAIL_LINES:])


def _quiet_libraries() -> None:
    """No progress bars in the log.

    A bar that is made all the same (peft's merge makes one to hide it) shares no lock with other processes: tqdm's own
    is a named semaphore, which `os._exit` would leave to the parent's resource tracker and its warning about a leak.
    """
    from threading import RLock

    from tqdm import tqdm  # type: ignore[import-untyped]
    from transformers.utils import logging

    tqdm.set_lock(RLock())
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
