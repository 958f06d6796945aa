"""A training child as a process: start it, listen to it, tell apart how it ended, and leave nothing behind."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import gc
import multiprocessing
import os
import signal
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

import suite
from suite.core.errors import ConfigError, DataError, SuiteError, WeightsUnavailable
from suite.core.evidence import AttemptEnd, AttemptOutcome, Step
from suite.core.helper import die_with_parent
from suite.core.out_of_memory import exit_message, ran_out
from suite.runner.card import show_only
from suite.runner.child import Request, carry_out

PACKAGE = Path(suite.__file__).parent
TAIL_LINES = 20
NO_GUARD = 'a script that trains must do it under `if __name__ == "__main__":`, since every child imports it'
OFFLINE = "HF_HUB_OFFLINE"
PRELOAD = "suite.runner.preload"
"""What the fork server imports before the first child."""
GRACE_SECONDS = 2.0
"""Between asking a child to end and killing it; the whole session must be gone within 5 s of a SIGTERM."""

Outcome = tuple[str, str]
"""(outcome, detail) as in AttemptEnd."""


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
    capability), and a process forked after that cannot use the GPU.
    """
    return "spawn" if gpu else "forkserver"


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
    with hub_forbidden():  # a spawned child imports for itself
        process.start()
    sender.close()
    outcome: Outcome | None = None
    try:
        started(process.pid)
        outcome = _listen(process, receiver, begun + deadline_seconds, progress)
        if outcome is None:
            _dump_stacks(process)
            outcome = (
                "hung",
                f"not done after {deadline_seconds:.0f} s (the run's deadline); its stacks are in the log",
            )
    finally:
        _end(process)
        receiver.close()
    tail = "" if outcome[0] == "finished" else _tail(log, log_start)
    if outcome[0] == "gone":
        outcome = _crash(process.exitcode, tail, began=log.exists())
    return AttemptEnd(
        outcome=AttemptOutcome(outcome[0]), detail=outcome[1], seconds=time.monotonic() - begun, log_tail=tail
    )


def run_here(request: Request, progress: Callable[[Step], None]) -> AttemptEnd:
    """The same in this process, for a debugger: no deadline, no protection from crashes."""
    started = time.monotonic()
    if request.device == "cuda":  # CUDA reads it once a process, so nothing is hidden for an attempt on the CPU
        show_only(request.card)
    with hub_forbidden():
        outcome, detail = _outcome_of(lambda: _work(request, progress), request.device)
    _give_back()
    return AttemptEnd(outcome=AttemptOutcome(outcome), detail=detail, seconds=time.monotonic() - started)


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
    with log.open("a") as file:
        os.dup2(file.fileno(), sys.stdout.fileno() if sys.stdout else 1)
        os.dup2(file.fileno(), sys.stderr.fileno() if sys.stderr else 2)
        faulthandler.enable(file)
        faulthandler.register(signal.SIGUSR1, file, all_threads=True)
        os.environ[OFFLINE] = "1"  # already there, but for a fork server that somebody else had started
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        _quiet_libraries()
        outcome = _outcome_of(lambda: _work(request, connection.send), request.device)
        file.flush()
        with contextlib.suppress(BrokenPipeError):
            connection.send(outcome)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)  # everything is written; taking torch apart in order would cost another half second


def _work(request: Request, progress: Callable[[Any], None]) -> None:
    # A spawned child and the debugger's process have yet to import everything. Before the session exists: a library
    # that logs an exception at import (bitsandbytes does) hands its frames, and all that they hold, to log handlers.
    import suite.runner.preload  # noqa: F401

    carry_out(request, progress)


def _outcome_of(work: Callable[[], None], device: str) -> Outcome:
    """Run the work and put whatever it raises into words; unexpected errors leave their traceback in the log."""
    try:
        work()
    except SuiteError as error:
        return (outcome_of(error), str(error))
    except Exception as error:
        traceback.print_exc()
        return _classify(error, device)
    return ("finished", "")


def outcome_of(error: SuiteError) -> str:
    """The outcome of an attempt that this error ended: a wrong request, missing weights or data, or something else."""
    if isinstance(error, ConfigError):
        return "misconfigured"
    return "unavailable" if isinstance(error, WeightsUnavailable | DataError) else "failed"


def _classify(error: Exception, device: str) -> Outcome:
    text = str(error).strip().split("\n")[0]
    whose = ran_out(error)
    if whose == "host" and device != "cpu":
        return (
            "failed",
            f"the host is out of memory, not the GPU: {text}; a training on the CPU would take more",
        )
    if whose:
        return ("out_of_memory", text or "the host is out of memory")
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return ("failed", f"the disk is full: {error}; free some space and run again")
    return ("failed", f"{type(error).__name__}: {text} ({_place(error)})")


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
    """Pass steps on until the outcome arrives; ("gone", "") when the child ended without one, None at the deadline."""
    while (left := deadline - time.monotonic()) > 0:
        wait([receiver, process.sentinel], timeout=min(left, 1.0))
        while receiver.poll():
            try:
                message = receiver.recv()
            except EOFError:
                process.join(GRACE_SECONDS)
                return ("gone", "")
            if isinstance(message, Step):
                progress(message)
            else:
                return (str(message[0]), str(message[1]))
        if not process.is_alive():
            return ("gone", "")
    return None


def _crash(exit_code: int | None, tail: str, *, began: bool) -> Outcome:
    """Return why a child that sent no outcome is gone, from its exit status and the end of its log."""
    if exit_code == 1 and (line := exit_message(tail)):
        return ("out_of_memory", line)
    if exit_code is not None and exit_code < 0:
        name = signal.Signals(-exit_code).name
        hint = " (the kernel's out-of-memory killer does this: look at dmesg)" if name == "SIGKILL" else ""
        return ("crashed", f"killed by {name}{hint}")
    why = "without saying why" if began else f"before its first line; {NO_GUARD}"
    return ("crashed", f"ended with status {exit_code} {why}")


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
