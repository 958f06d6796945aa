"""Locks between processes: lock files that name their holder."""

import os
from pathlib import Path

from filelock import FileLock, Timeout

from tunecheck.core.files import NOTE_BYTES, read_text


class OwnedLock:
    """A lock file, and beside it a file with the process id of its last holder.

    The kernel releases the lock with its holder. Opening the lock file may truncate it, so that the id has its own.
    """

    def __init__(self, path: Path) -> None:
        """`path` ends in "lock"; the holder's file has "owner" instead."""
        self.path = path
        self._lock = FileLock(path)
        self._owner = path.with_name(f"{path.name.removesuffix('lock')}owner")

    def acquire(self, timeout_seconds: float = 0.0) -> bool:
        """Take the lock within the timeout and return whether that succeeded. Raises OSError for an unusable folder."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=timeout_seconds)
        except Timeout:
            return False
        try:
            self._owner.write_text(str(os.getpid()), encoding="utf-8")
        except OSError:
            self._lock.release()
            raise
        return True

    def release(self) -> None:
        """Give the lock back."""
        self._lock.release()

    @property
    def holder(self) -> str:
        """Process id of the last holder; "?" where none is recorded."""
        try:
            return read_text(self._owner, NOTE_BYTES)
        except (OSError, UnicodeDecodeError):
            return "?"
