"""Standard output and error that are closed, full, or left by their reader: a command goes on, and says it at its end.

Nothing is raised where something is printed, which may be anywhere, and nothing by Python when it flushes at its exit.
"""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any


class _Unbroken(io.FileIO):
    """A standard stream whose writes succeed; what the first error was is kept."""

    def __init__(self, number: int, *, closed: bool) -> None:
        super().__init__(number, "w", closefd=False)
        self.lost: OSError | None = None
        """Why something that was written did not arrive."""
        self._was_closed = closed

    def write(self, data: Any, /) -> int:
        """Write, and return the number of bytes that need not be written any more."""
        try:
            if self._was_closed:
                raise OSError(errno.EBADF, "it is closed")
            return super().write(data)
        except BlockingIOError:
            raise
        except OSError as error:
            self.lost = self.lost or error
            return len(data)


@contextlib.contextmanager
def guarded() -> Iterator[Callable[[], OSError | None]]:
    """Guard the process's own standard output and error; those that a test has put in their place are left alone.

    Yield a function that returns why standard output, or a part of it, did not arrive; None where all of it did.
    """
    closed = _fill()
    before, taken = {}, dict[str, _Unbroken]()

    def lost() -> OSError | None:
        sys.stdout.flush()
        return taken["stdout"].lost if "stdout" in taken else None

    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__") or not (stream is None or isinstance(stream, io.TextIOWrapper)):
            continue
        before[name], taken[name] = stream, _Unbroken(number, closed=number in closed)
        setattr(sys, name, _text(taken[name], stream))
    try:
        yield lost
    finally:
        for name, stream in before.items():
            getattr(sys, name).flush()
            setattr(sys, name, stream)


@contextlib.contextmanager
def set_aside() -> Iterator[None]:
    """Send to standard error what this process, a library or a child prints to standard output in this block."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _fill() -> set[int]:
    """Open what is closed of the three standard files, and return it.

    The next file that is opened would have its number, and get what libraries and children print.
    """
    closed = set()
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number: this one
            closed.add(number)
    return closed


def _text(raw: _Unbroken, stream: io.TextIOWrapper | None) -> io.TextIOWrapper:
    """Return a text stream like this one; what an encoding lacks (an arrow, an emoji) is spelled out."""
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding if stream else "utf-8",
        errors="backslashreplace",
        line_buffering=stream.line_buffering if stream else False,
        write_through=stream.write_through if stream else False,
    )
