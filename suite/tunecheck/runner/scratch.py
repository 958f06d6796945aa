"""The folder for what a run writes and nobody keeps: checkpoints, saved adapters, the meter's files."""

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tunecheck.core.errors import SuiteError

PREFIX = "tunecheck-"
_OWNED = "owned"
"""File in the folder that its process keeps locked. A process id would not do: containers may share the folder."""


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a folder in the system's temporary folder, and remove it afterwards.

    Those of processes that were killed before they could remove theirs are removed first: a checkpoint may be large.
    Raises SuiteError where none can be made.
    """
    _remove_orphans()
    folder = None
    with contextlib.ExitStack() as stack:
        try:
            folder = Path(tempfile.mkdtemp(prefix=PREFIX))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            made = folder / "made"
            fcntl.flock(stack.enter_context(made.open("w")), fcntl.LOCK_EX)
            made.rename(folder / _OWNED)  # locked before it bears the name: nobody takes it for an orphan in between
        except OSError as error:
            raise SuiteError(
                f"no temporary folder can be made in {tempfile.gettempdir() if folder else 'any of the usual places'}: "
                f"{error.strerror or error}; make room, or set TMPDIR to a folder of yours"
            ) from error
        yield folder


def _remove_orphans() -> None:
    """Remove the scratch folders that no process holds any more; those of other users stay."""
    with contextlib.suppress(OSError):
        for owned in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{_OWNED}"):
            with contextlib.suppress(OSError), owned.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(owned.parent, ignore_errors=True)
