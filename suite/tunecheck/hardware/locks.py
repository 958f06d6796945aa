"""Locks between processes: files that name their holder."""

import fcntl
import os
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from tunecheck.core.files import NOTE_BYTES, read_text

POLL_SECONDS = 0.05


class OwnedLock:
    """A lock on a file that has the process id of its last holder. The kernel releases the lock with its holder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held = ExitStack()

    def acquire(self, timeout_seconds: float = 0.0) -> bool:
        """Take the lock within the timeout and return whether that succeeded. Raises OSError for an unusable folder."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + timeout_seconds
        with ExitStack() as opened:
            file = opened.enter_context(self.path.open("a+b", buffering=0))  # as it is: it names its holder
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        return False
                    time.sleep(POLL_SECONDS)
            file.truncate(0)
            file.write(str(os.getpid()).encode())
            self._held = opened.pop_all()
        return True

    def release(self) -> None:
        self._held.close()

    @property
    def holder(self) -> str:
        """Process id of the last holder; "?" where none is recorded."""
        with suppress(OSError, UnicodeDecodeError):
            return read_text(self.path, NOTE_BYTES) or "?"
        return "?"
