"""Files: written whole or not at all, and the one way in for every file that somebody else may have written.

What is read has limits first, then plain values. A name that is no regular file (a FIFO would wait for its writer, a
device has no end), a file that is too large for what it should be, and JSON that is nested too deeply are errors like
any other: OSError with `strerror`, or ValueError.
"""

import contextlib
import errno
import glob
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from tunecheck.core.errors import SuiteError
from tunecheck.core.redaction import redacted
from tunecheck.core.text import human_bytes

NO_SPACE_WORDS = ("No space left on device", "os error 28", "Disk quota exceeded")
"""Of libraries that write files without Python, such as safetensors and hf_xet, and of other processes."""

NOTE_BYTES = 2**16
"""Most bytes of a file that one process leaves for another: a process id, a stamp."""
YAML_BYTES = 2**16
"""Most bytes of a YAML. A run has 2 KiB, a comparison of ten 4; the parser, in Python, reads 60 KiB a second."""
JSON_BYTES = 2**26
"""Most bytes of a verdict, a baseline or a manifest. A verdict of 40 runs of 500 steps has 3 MiB."""
TRACE_BYTES = 2**29
"""Most bytes of a trace. One of 1000 steps of LLaMA-7B has 20 MiB."""
ANY_BYTES = 2**63 - 1
"""No limit, for a file of which only a beginning is read."""
ROWS_BYTES = 2**32


def is_disk_full(said: BaseException | str) -> bool:
    """Return whether an error, or what a process says of one, is that of a full disk or quota."""
    by_number = isinstance(said, OSError) and said.errno in (errno.ENOSPC, errno.EDQUOT)
    return by_number or any(words in str(said) for words in NO_SPACE_WORDS)


def write_whole(path: Path, text: str) -> None:
    """Write the text as UTF-8, whole or not at all, and create missing folders. Raises SuiteError naming the folder."""
    # In the same folder, because a rename is atomic only within one file system.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Broken output of a child can hold lone surrogates, which are no UTF-8; JSON reads their escapes back.
        unfinished.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
        os.replace(unfinished, path)
    except OSError as error:
        # The folder that refused the file may refuse this too; the error that matters is the first one.
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        remedy = "make room in that folder and make it writable, or name another one for the reports"
        why = f"{path.name} cannot be written ({error.strerror or error})"
        raise SuiteError(f"{path.parent}: {why}; {remedy}") from error


def hide_secrets(log: Path) -> None:
    """Rewrite the log of a process that has ended without its secrets, where it has any."""
    with contextlib.suppress(OSError, SuiteError):
        if (hidden := redacted(held := log.read_text("utf-8", errors="replace"))) != held:
            write_whole(log, hidden)


def open_file(path: Path, most_bytes: int) -> BinaryIO:
    """Open a regular file of at most so many bytes. Raises OSError, whose `strerror` says what is wrong."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # else a FIFO waits here for its writer
    except ValueError as error:  # a null character, which no path has
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    try:
        if stat.S_ISDIR((status := os.fstat(descriptor)).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file but a pipe, a socket or a device", str(path))
        if status.st_size > most_bytes:
            sizes = f"has {human_bytes(status.st_size)}; at most {human_bytes(most_bytes)} are read"
            raise OSError(errno.EFBIG, sizes, str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: Path, most_bytes: int) -> bytes:
    """Return the content of a regular file. Raises OSError."""
    with open_file(path, most_bytes) as file:
        return file.read(most_bytes)  # a file that grows meanwhile is cut, and then is no longer what it should be


def read_text(path: Path, most_bytes: int) -> str:
    """Return the text of a regular file, with "\\n" at the end of its lines. Raises OSError, UnicodeDecodeError."""
    return read_bytes(path, most_bytes).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: Path, most_bytes: int = JSON_BYTES) -> Any:
    """Return the value of a JSON file. Raises OSError, and ValueError for what is no JSON."""
    return parse_json(read_bytes(path, most_bytes))


def listed(folder: Path, pattern: str = "*") -> list[Path]:
    """Return the paths below this folder that match, sorted; one that vanishes, or may not be read, is none."""
    # Path.glob raises an error for it, and another process may remove any session
    with contextlib.suppress(ValueError):  # a null character, which no path has
        return sorted(folder / name for name in glob.iglob(pattern, root_dir=folder, include_hidden=True))
    return []


def last_lines(path: Path, most: int, *, start: int = 0) -> list[str]:
    """Return at most so many of the last lines of a log, of what follows byte `start`. Raises OSError."""
    with path.open("rb") as file:
        file.seek(start)
        return file.read().decode("utf-8", "replace").strip().splitlines()[-most:]


def parse_json(text: str | bytes, *, unique: bool = False) -> Any:
    """Return the value of this JSON. Raises ValueError, also where it is nested too deep; `unique`: for a key twice."""
    try:
        return json.loads(text, object_pairs_hook=_unique if unique else None)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(held := dict(pairs)) < len(pairs):
        twice = next(key for number, (key, _) in enumerate(pairs) if key in dict(pairs[:number]))
        raise ValueError(f"{json.dumps(twice)} is given twice")
    return held
