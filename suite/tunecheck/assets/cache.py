"""Cache entry of one model or data set: locked between processes, its folders complete or absent."""

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tunecheck.assets.folder import PassedOver, note_repair, repairs_of, without_remedy
from tunecheck.core.errors import WeightsDamaged, WeightsUnavailable
from tunecheck.core.files import is_disk_full
from tunecheck.core.frozen import Frozen
from tunecheck.core.log import log
from tunecheck.core.paths import cache_folder
from tunecheck.hardware.locks import OwnedLock
from tunecheck.models.description import Model

F = TypeVar("F")

LOCK_SECONDS = 3600.0
"""Longest wait for a lock: longer than fetching and converting the largest model takes on a slow line."""
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


class Shelf(Frozen):
    """Folder of one model or data set in the cache, held by this process alone."""

    model: str
    folder: Path

    def target(self, kind: str, *parts: Any) -> Path:
        """Return the folder for this kind and these parts (JSON values); other parts give another folder."""
        digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
        return self.folder / f"{kind}-{digest[:16]}"

    def keep(
        self,
        target: Path,
        make: Callable[[bool], None],
        opened: Callable[[Path], F],
        unreachable: Callable[[], object] = lambda: True,
    ) -> F:
        """Return `opened(target)`, which verifies the folder; build it with `make(False)` where there is none.

        What is damaged is made once more by `make(True)`: on its arrival, unless its source is `unreachable`, and later
        when it is renamed aside. Where it cannot be made, WeightsDamaged is raised and the folder stays where it was.
        """
        try:
            return opened(target)
        except FileNotFoundError:
            shutil.rmtree(target, ignore_errors=True)  # links into a hub cache that was emptied
        except WeightsDamaged as error:
            self._make_again(target, make, without_remedy(error))
            return opened(target)
        try:
            make(False)
        except WeightsDamaged as error:
            if unreachable():
                raise
            log.warning(f"{self.model}: {without_remedy(error)} Fetching once more")
            make(True)
            note_repair(target, without_remedy(error))
        return opened(target)

    def _make_again(self, target: Path, make: Callable[[bool], None], damage: str) -> None:
        """Build anew; keep the damaged folder aside for inspection, or put it back: the next run must find it."""
        aside = target.with_name(f".damaged-{target.name}")
        shutil.rmtree(aside, ignore_errors=True)
        target.rename(aside)
        log.warning(f"{self.model}: {damage} Renamed to {aside}; fetching once more")
        try:
            make(True)
            note_repair(target, damage, repairs_of(aside))
        except BaseException as error:
            aside.rename(target)
            if not isinstance(error, PassedOver):
                raise
            remedy = f"What to do: fix that and run again, or delete {target} to go on without it"
            raise WeightsDamaged(f"{self.model}: {damage} It cannot be fetched again: {error}. {remedy}.") from None

    @contextmanager
    def building(self, target: Path, *, needed_bytes: int) -> Iterator[Path]:
        """Yield a folder that replaces `target` atomically after the block. Raises WeightsUnavailable without space."""
        with disk_full_is_said(self.model, self.folder, needed_bytes):
            if needed_bytes > shutil.disk_usage(self.folder).free:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            workspace = Path(tempfile.mkdtemp(prefix=".building-", dir=self.folder))
            try:
                built = workspace / "model"
                built.mkdir()
                yield built
                _sync([*built.iterdir(), built])
                os.replace(built, target)
                _sync([self.folder])
            finally:
                shutil.rmtree(workspace, ignore_errors=True)


@contextmanager
def shelf(model: str, *, kind: str = "models", lock_seconds: float = LOCK_SECONDS) -> Iterator[Shelf]:
    """Lock the cache entry of this name and `kind`, if it can be written; remove what dead processes left half-built.

    Raises WeightsUnavailable for a cache, or a file in the block, that cannot be used, and a lock held too long.
    """
    folder = cache_folder().absolute() / kind / model
    lock = OwnedLock(folder / ".lock")
    try:
        if not lock.acquire(min(1.0, lock_seconds)):
            log.info(f"{model}: waiting for process {lock.holder}, which is working on {folder}")
            if not lock.acquire(max(0.0, lock_seconds - 1.0)):
                remedy = "What to do: wait for it or end it; the lock is released with the process."
                why = f"process {lock.holder} still holds {lock.path} after {lock_seconds:g} s"
                raise WeightsUnavailable(f"{model}: {why}. {remedy}")
    except OSError as error:
        if error.errno not in _READ_ONLY or not os.path.isdir(folder):  # False of a closed one
            remedy = "What to do: give write access to it, or set TUNECHECK_CACHE to another folder."
            why = f"the cache folder {folder} cannot be used: {error.strerror}"
            raise WeightsUnavailable(f"{model}: {why}. {remedy}") from error
    else:
        for leftover in folder.glob(".building-*"):  # whoever held the lock before is dead or done
            shutil.rmtree(leftover, ignore_errors=True)
    try:
        yield Shelf(model=model, folder=folder)
    except OSError as error:
        raise unusable(model, error, folder) from error
    finally:
        lock.release()


def unusable(what: str, error: OSError, folder: Path) -> WeightsUnavailable:
    """Return the error for a file that cannot be read or written; the folder is named where the error names no file."""
    problem = f"{what}: {error.filename or folder}: {error.strerror or error}"
    return WeightsUnavailable(f"{problem}. What to do: make the file readable, or the disk writable.")


@contextmanager
def disk_full_is_said(model: str, folder: Path, needed_bytes: int) -> Iterator[None]:
    """Raise WeightsUnavailable with the bytes needed and free for a full disk or quota in the block."""
    try:
        yield
    except Exception as error:
        if not is_disk_full(error):
            raise
        free_bytes = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
        raise WeightsUnavailable(
            f"{model}: no space left in {folder}: about {needed_bytes:,} bytes are needed, {free_bytes:,} are free. "
            "What to do: free space, or set TUNECHECK_CACHE (for downloads from the hub also HF_HOME) to a larger disk."
        ) from None


def _sync(paths: Iterable[Path]) -> None:
    """Flush these files and folders to disk: a crash after the move must not leave an empty file behind."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Wanted(Frozen):
    """One model, whether random weights are allowed, and the cache entry to fill."""

    model: Model
    allow_random: bool
    shelf: Shelf

    @property
    def weights_bytes(self) -> int:
        return 2 * self.model.parameters

    def origin(
        self, source: str, identifier: str, revision: str, *, pretrained: bool = True, notes: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """Return what a manifest records of the weights besides its files: the fields of `evidence.Weights`."""
        told = {"model": self.model.name, "source": source, "identifier": identifier, "revision": revision}
        return {**told, "pretrained": pretrained, "notes": notes}
