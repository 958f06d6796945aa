"""Write files atomically: whole or not at all."""

import contextlib
import os
from pathlib import Path

from tunecheck.core.errors import SuiteError


def write_whole(path: Path, text: str) -> None:
    """Write the text as UTF-8 so that no reader ever sees a part of it; create missing folders.

    Raises SuiteError naming the folder when it cannot be written; an older file of that name then stays.
    """
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
        raise SuiteError(
            f"{path.parent}: {path.name} cannot be written ({error.strerror or error}); "
            "make room in that folder and make it writable, or name another one for the reports"
        ) from error
