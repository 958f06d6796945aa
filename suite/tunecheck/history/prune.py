"""Remove the folders of old sessions; their figures stay in the history."""

import re
import shutil
import time
from pathlib import Path

from tunecheck.core.errors import SuiteError
from tunecheck.core.frozen import Frozen
from tunecheck.core.paths import evidence_folder
from tunecheck.history.remember import entries_of
from tunecheck.history.store import Store
from tunecheck.results.verdict import VERDICT_FILE

SESSION = re.compile(r"\d{8}T\d{6}Z-\d+")
"""Name of a session's folder; nothing else is ever removed."""
PRUNED = ".pruned-"
"""Prefix of a folder that is being removed, so that no half of it is taken for a session."""
UNFINISHED_SECONDS = 24 * 3600.0
"""A session without a verdict that wrote something in this time may still be running."""


class Plan(Frozen):
    """Sessions to remove and to keep."""

    removed: tuple[Path, ...]
    kept: tuple[Path, ...]
    running: tuple[Path, ...]
    """Kept in addition, since they have no verdict and may not have ended."""


def plan(folder: Path, *, keep: int) -> Plan:
    """Plan to keep the last `keep` sessions and whatever may still be running; links and other names are ignored.

    Raises SuiteError for the folder of committed evidence, all of which stays.
    """
    if folder.resolve().is_relative_to(evidence_folder()):
        raise SuiteError(f"{folder}: committed evidence is never pruned; remove it by git if it must go")
    sessions = sorted(path for path in folder.glob("*/") if SESSION.fullmatch(path.name) and not path.is_symlink())
    running = [path for path in sessions if _may_be_running(path)]
    ended = [path for path in sessions if path not in running]
    last = len(ended) - keep
    return Plan(removed=tuple(ended[: max(0, last)]), kept=tuple(ended[max(0, last) :]), running=tuple(running))


def prune(what: Plan, store: Store) -> int:
    """Add the sessions' entries to the store, remove their folders, and return the bytes that this freed.

    Raises SuiteError, with nothing removed, when the store cannot be written.
    """
    for session in what.removed:
        store.add(entries_of(session))
    return sum(_remove(session) for session in what.removed)


def _remove(session: Path) -> int:
    size = sum(path.lstat().st_size for path in session.rglob("*") if not path.is_dir())
    leaving = session.with_name(f"{PRUNED}{session.name}")
    try:
        session.rename(leaving)
        shutil.rmtree(leaving)
    except OSError as error:
        raise SuiteError(f"{session}: cannot be removed: {error.strerror}; its figures are in the history") from error
    return size


def _may_be_running(session: Path) -> bool:
    if (session / VERDICT_FILE).exists():
        return False
    newest = max((path.lstat().st_mtime for path in session.iterdir()), default=session.stat().st_mtime)
    return time.time() - newest < UNFINISHED_SECONDS
