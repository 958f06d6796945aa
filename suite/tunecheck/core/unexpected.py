"""The last resort: an error that nobody foresaw becomes one line for the user and a file with its traceback."""

import contextlib
import sysconfig
import tempfile
import traceback
from pathlib import Path

from tunecheck.core.errors import TRAIN_EXTRA
from tunecheck.core.redaction import redacted
from tunecheck.core.text import one_line

TRACEBACK_FILE = "error.txt"
_PACKAGE = Path(__file__).resolve().parents[1]


def unexpected(error: BaseException, folder: Path | None = None) -> str:
    """Return the line, after writing the traceback into the folder, or into the temporary one where that refuses it."""
    # a distribution without metadata is a missing module, too
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("tunecheck"):
        return f"needs the package {error.name}, which is not installed here; {TRAIN_EXTRA}"
    where = f"; its traceback is in {kept}" if (kept := _keep(error, folder)) else ""
    return f"an error of tunecheck itself, so this could not be judged: {described(error)}{where}"


def described(error: BaseException) -> str:
    """Return type, text and place of an error: "KeyError: 'x' (suite/tunecheck/plugin.py:88)"."""
    return f"{type(error).__name__}: {one_line(redacted(str(error)), 300)} ({place_of(error)})"


def place_of(error: BaseException) -> str:
    """Return file and line of the innermost frame of this package or of the user's code: "training/native.py:88"."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_library(frame.filename)] or frames
    return f"{'/'.join(Path(own[-1].filename).parts[-2:])}:{own[-1].lineno}" if own else "never raised"


def _is_library(filename: str) -> bool:
    path = Path(filename)
    if path.is_relative_to(_PACKAGE):  # which lies in site-packages itself where it was installed from a wheel
        return False
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return filename.startswith("<") or bool(installed) or path.is_relative_to(sysconfig.get_paths()["stdlib"])


def _keep(error: BaseException, folder: Path | None) -> Path | None:
    text = redacted("".join(traceback.format_exception(error))) + "\n"
    if folder is not None:
        with contextlib.suppress(OSError), (folder / TRACEBACK_FILE).open("a", errors="backslashreplace") as file:
            file.write(text)
            return folder / TRACEBACK_FILE
    with contextlib.suppress(OSError):
        descriptor, name = tempfile.mkstemp(prefix="tunecheck-error-", suffix=".txt")
        with open(descriptor, "w", errors="backslashreplace") as file:
            file.write(text)
        return Path(name)
    return None
