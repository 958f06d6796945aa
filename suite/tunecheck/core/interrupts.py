"""Ctrl-C, SIGTERM and SIGHUP: they end a command with the same status at any moment, and never with a traceback.

A command begins by starting: it imports and reads its arguments, there is nothing to keep, and a signal ends it at
once. At work, a signal raises KeyboardInterrupt in the main thread, and whoever holds something finished keeps it.
While it closes, what is being written is written whole: further signals wait.

Standard library alone, and little of it: until this is imported, a signal meets Python's own handlers.
"""

import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Literal

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NOTICES = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals by which a scheduler announces its end of a job (Slurm's --signal), minutes before SIGTERM.

A session goes on, and so do its children, which inherit that the signals are ignored. A watched command gets them."""
_NOT_SENT = {
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCHLD, signal.SIGPIPE),
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS),
    *(signal.SIGWINCH, signal.SIGURG, signal.SIGXFSZ),
}
INTERRUPTED = 2
CLOSING_SECONDS = 10.0
"""After which the next signal ends a command that is still closing; a session is gone within 5 s of a signal."""


class Interrupted(KeyboardInterrupt):
    """A signal came. Of a plain KeyboardInterrupt that crosses an exec() of text, as dataclasses make them while they
    are imported, CPython remembers that nobody handled it, and `python -m` dies of SIGINT instead of its status."""


_state: Literal["starting", "working", "closing"] = "starting"
_closing_since = 0.0
_terminal = 2
"""A copy of standard error, which pytest exchanges while it captures."""
_before: dict[int, Any] = {}
"""The handlers of the signals that are listened to; empty while none is."""
_ignored: dict[int, Any] = {}
"""Likewise of the notices that are ignored."""


def listen() -> bool:
    """Handle the signals from now on, but those that are ignored, as by nohup; return False if it is done already."""
    global _state, _terminal
    if _before:
        return False
    _state = "starting"
    with contextlib.suppress(OSError):
        _terminal = fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, 3)  # not 0 to 2, one of which may be closed
    with contextlib.suppress(ValueError):  # in a thread, which gets no signals
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                _before[number] = signal.signal(number, _received)
        for number in NOTICES:
            if signal.getsignal(number) is signal.SIG_DFL:
                _ignored[number] = signal.signal(number, signal.SIG_IGN)
    sys.unraisablehook = _raise_again
    return True


def to_pass_on() -> list[signal.Signals]:
    """Return the signals that a command should get which this process waits for: Slurm's --signal may be any.

    Not those that a process causes itself, those of job control, and those that somebody else handles or ignores.
    """
    others = [number for number in signal.valid_signals() - _NOT_SENT if number not in SIGNALS]
    heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    return heard + [n for n in others if n in _ignored or signal.getsignal(n) is signal.SIG_DFL]


def work() -> None:
    """Raise KeyboardInterrupt at a signal from now on, though a library (Ray) has put its own handler there."""
    global _state
    _state = "working"
    for number in _before:
        signal.signal(number, _received)


def close() -> None:
    """Let the signals wait from now on, but for those that come CLOSING_SECONDS later."""
    global _state, _closing_since
    if _state != "closing":
        _state, _closing_since = "closing", time.monotonic()


def stop(*, at_exit: bool = False) -> None:
    """Put the handlers back; at the exit ignore the signals, since Python would print what a handler raises."""
    global _terminal
    for number, handler in (_before | _ignored).items():
        signal.signal(number, signal.SIG_IGN if at_exit else handler)
    _before.clear()
    _ignored.clear()
    sys.unraisablehook = sys.__unraisablehook__
    if _terminal != 2:
        os.close(_terminal)
        _terminal = 2


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Block the signals while a child is started: it would print what its imports raise. `on_its_own` unblocks them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def on_its_own() -> None:
    """Move this process, a child, into a group of its own, which the terminal's signals do not reach."""
    with contextlib.suppress(PermissionError):  # it leads a session
        os.setpgrp()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # one that waits since the start is dropped by this
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    for number in NOTICES:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _received(number: int, frame: FrameType | None) -> None:
    if _state == "starting" or (_state == "closing" and time.monotonic() - _closing_since > CLOSING_SECONDS):
        with contextlib.suppress(OSError):
            os.write(_terminal, b"tunecheck: interrupted\n")
        os._exit(INTERRUPTED)
    if _state == "working":
        close()
        raise Interrupted


def _raise_again(unraisable: Any, default: Callable[[Any], object] = sys.__unraisablehook__) -> None:
    """Raise an interrupt once more that was raised where nothing can be: in a finalizer, or a weak reference's call."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        default(unraisable)
        return
    import threading

    work()
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
