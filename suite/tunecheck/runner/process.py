"""A training child as a process: start it, listen to it, tell apart how it ended, and leave nothing behind."""

import contextlib
import faulthandler
import gc
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TextIO

import psutil

from tunecheck.core import interrupts
from tunecheck.core.errors import Unsupported
from tunecheck.core.evidence import AttemptCause, AttemptOutcome, Step
from tunecheck.core.files import hide_secrets, last_lines
from tunecheck.core.fork_server import OFFLINE, hub_forbidden, start_method, warm_up
from tunecheck.core.helper import die_with_parent
from tunecheck.runner.outcome import Outcome, carried_out, crash_of, imported
from tunecheck.runner.ranks import hanging, train_in_ranks
from tunecheck.runner.request import Progress, Request, Started, show_only

UNKNOWN_STATUS = 255
"""What multiprocessing says of a child whose status the fork server did not pass on."""
GRACE_SECONDS = 2.0
"""Between asking a child to end and killing it; the whole session must be gone within 5 s of a SIGTERM."""


def run_child(request: Request, *, gpu: bool, progress: Progress, started: Started = lambda pid: None) -> Outcome:
    """Train in a fresh process, whose id `started` gets, and return how it ended. It never outlives this call."""
    log = request.trace.with_suffix(".log")
    warm_up(gpu)
    context: Any = multiprocessing.get_context(start_method(gpu))
    receiver, sender = context.Pipe(duplex=False)
    log_start = log.stat().st_size if log.exists() else 0
    alone = request.run.parallel is None  # ranks are children, and a daemon may have none
    process = context.Process(target=child_main, args=(request, sender, log), daemon=alone)
    deadline = time.monotonic() + request.run.deadline
    try:
        # A spawned child imports for itself. The fork server's answer comes after its own imports, seconds later, and
        # its children are as little the terminal's as itself.
        with hub_forbidden(), interrupts.blocked() if start_method(gpu) == "spawn" else contextlib.nullcontext():
            process.start()
    except (OSError, EOFError) as error:  # no process left, no memory for one, or the fork server died at this moment
        receiver.close()
        sender.close()
        why = f"the training process could not be started: {type(error).__name__}: {error}"
        return Outcome(AttemptOutcome.CRASHED, why, AttemptCause.START)
    sender.close()
    try:
        started(process.pid)
        try:
            outcome = _listen(process, receiver, deadline, progress)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGUSR1)  # has it write its stacks
            time.sleep(0.5)
            why = f"not done after {request.run.deadline:.0f} s (the run's deadline); its stacks are in the log"
            outcome = Outcome(AttemptOutcome.HUNG, why + hanging(request), AttemptCause.DEADLINE)
        served = _served(process.exitcode)
    finally:
        _end(process)
        receiver.close()
    if outcome is None:
        began = log.exists()  # not where it ended before it could open its log
        tail = "\n".join(last_lines(log, 20, start=log_start)) if began else ""
        outcome = crash_of(process.exitcode, tail, began=began, served=served)
    hide_secrets(log)
    return outcome


def _served(exit_code: int | None) -> bool:
    """Return whether the fork server lives, which alone knows its child's exit status; True where none is used."""
    # multiprocessing reaps it when it starts the next. Killed, it closes its pipes a moment before it counts as dead
    if (pid := getattr(forkserver._forkserver, "_forkserver_pid", None)) is None:
        return True
    until = time.monotonic() + (GRACE_SECONDS if exit_code == UNKNOWN_STATUS else 0)
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() >= until:
                return True
            time.sleep(0.01)
    return False


def run_here(request: Request, progress: Progress, started: Started = lambda pid: None) -> Outcome:
    """The same in this process, for a debugger: no deadline, no protection from crashes."""
    started(os.getpid())
    if request.device == "cuda":  # CUDA reads it once a process, so nothing is hidden for an attempt on the CPU
        show_only(request.cards)
    with hub_forbidden():
        outcome = imported() or carried_out(lambda: _work(request, progress), request.device, request.written)
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():  # what is left of a card is the next attempt's
        torch.cuda.empty_cache()
    return outcome


def child_main(request: Request, connection: Connection, log: Path) -> None:
    """The child's main function: output to the log, every step and the outcome to the parent."""
    interrupts.on_its_own()  # so that the parent can end whatever this process starts
    die_with_parent()
    server: Any = forkserver._forkserver
    # Every child is handed an end of the pipe by which the server sees that the session lives. Kept open, it would have
    # the server, and so this process, outlive a session that was killed while the training hangs.
    if (alive := getattr(server, "_forkserver_alive_fd", None)) is not None:
        server._forkserver_alive_fd = None
        os.close(alive)
    # what starts ranks leaves the memory of their cards to them
    show_only(() if request.run.parallel is not None and request.cards is not None else request.cards)
    with _log_file(log) as file:
        os.dup2(file.fileno(), sys.stdout.fileno() if sys.stdout else 1)
        os.dup2(file.fileno(), sys.stderr.fileno() if sys.stderr else 2)
        faulthandler.enable(file)
        faulthandler.register(signal.SIGUSR1, file, all_threads=True)
        tempfile.tempdir = os.environ["TMPDIR"] = str(request.checkpoint.parent)  # removed, however this process ends
        os.environ[OFFLINE] = "1"  # already there, but for a fork server that somebody else had started
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        if (outcome := imported(quiet=True)) is None and request.run.parallel is not None:
            outcome = train_in_ranks(request, connection)
        outcome = outcome or carried_out(lambda: _work(request, connection.send), request.device, request.written)
        file.flush()
        with contextlib.suppress(BrokenPipeError):
            connection.send(outcome)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)  # everything is written; taking torch apart in order would cost another half second


def _log_file(log: Path) -> TextIO:
    try:
        return log.open("a")
    except OSError:  # the output is dropped; the trace will tell whether the folder is full
        return open(os.devnull, "a")


def _work(request: Request, progress: Callable[[Any], None]) -> None:
    if request.run.parallel is not None:
        raise Unsupported("--in-process trains in one process, but parallel.processes asks for several: remove one")
    from tunecheck.runner.child import carry_out

    carry_out(request, progress)


def _listen(process: Any, receiver: Connection, deadline: float, progress: Progress) -> Outcome | None:
    """Pass steps on until the outcome arrives; None when the child ended without one. Raises TimeoutError."""
    while (left := deadline - time.monotonic()) > 0:
        wait([receiver, process.sentinel], timeout=min(left, 1.0))
        while receiver.poll():
            try:
                message: Step | Outcome = receiver.recv()
            except EOFError:
                process.join(GRACE_SECONDS)
                return None
            if not isinstance(message, Step):
                return message
            progress(message)
        if not process.is_alive():
            return None
    raise TimeoutError


def _end(process: Any) -> None:
    process.join(0.1)
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not process.is_alive():
            break
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):  # it has no group of its own yet
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)
        process.join(GRACE_SECONDS)
