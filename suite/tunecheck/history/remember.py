"""Compare a session's figures with previous sessions, add them to the history, and remove the folders of old ones."""

import dataclasses
import re
import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tunecheck.core.errors import HistoryDamaged, HistoryError, SuiteError
from tunecheck.core.files import listed
from tunecheck.core.frozen import Frozen
from tunecheck.core.log import log
from tunecheck.core.paths import evidence_folder
from tunecheck.core.typed import MISFITS, build
from tunecheck.history.baseline import AcceptedBaseline, baseline_file, baseline_for
from tunecheck.history.store import RECENT, HistoryEntry, Store, changed, history_entries, history_file
from tunecheck.results import Report
from tunecheck.results.baseline import FIGURES, FigureComparison, compare_to_baseline
from tunecheck.results.fleet import ANSWER_FILE, ANSWERS, NODES_FOLDER, Answer
from tunecheck.results.rejudge import session_report
from tunecheck.results.stored import VERDICT_FILE

SESSION = re.compile(r"\d{8}T\d{6}Z-\d+")
"""Name of a session's folder; nothing else is ever removed."""


def with_history(report: Report, folder: Path) -> Report:
    """Return the report with each figure compared to its baseline, and a note on each that could not be."""
    entries, notes = history_entries(report, folder)
    comparisons: list[FigureComparison] = []
    store = Store(history_file(folder.parent))
    for entry in entries:
        try:
            found, note = compare_to_history(entry, store)
            comparisons += found
            notes += [note] if note else []
        except (HistoryError, OSError) as error:
            notes.append(f"{entry.run} is not compared with previous sessions: {error}")
    return dataclasses.replace(report, figure_comparisons=tuple(comparisons), history_notes=tuple(notes))


def remember(report: Report, folder: Path) -> None:
    """Add this session's entries to the store. Raises HistoryError; the session's folder still holds all of them."""
    entries, _ = history_entries(report, folder)  # with_history has reported the same
    if entries:
        Store(history_file(folder.parent)).add(entries)


def compare_to_history(
    entry: HistoryEntry, store: Store, path: Path | None = None
) -> tuple[list[FigureComparison], str]:
    """Compare the entry's figures to the baseline in this file, else to the accepted one, else to previous entries.

    The note says why an accepted baseline is not used. Raises HistoryError for an unusable store or baseline.
    """
    baseline, note = baseline_for(entry, path)
    before = store.entries(key=entry.key, before=entry.started_at, outcome="pass", last=RECENT)
    return compare_figures(entry, before, baseline), note


def compare_figures(
    entry: HistoryEntry, before: Sequence[HistoryEntry], baseline: AcceptedBaseline | None
) -> list[FigureComparison]:
    """Compare each figure of the entry to the accepted baseline, else to the entries `before`, the oldest first."""
    made = []
    for name, figure in FIGURES.items():
        if name not in entry.figures:
            continue
        accepted = baseline.figures.get(name) if baseline else None
        comparison = compare_to_baseline(
            entry.run,
            figure,
            entry.figures[name],
            [earlier.figures[name] for earlier in before if name in earlier.figures],
            accepted=accepted,
            baseline=baseline_file(Path(), entry.run, entry.key.device).name if accepted else "",
        )
        if comparison.status in ("worse", "suspect") and before:
            comparison = dataclasses.replace(comparison, changed=changed(before[-1], entry))
        made.append(comparison)
    return made


def rebuild(folder: Path) -> tuple[Path, int]:
    """Rebuild the store from all sessions in this folder; entries of sessions that are gone are kept.

    A store that cannot be used is set aside first, and what can still be read of it is kept. Returns its path and the
    number of sessions read. Raises HistoryError when nothing can be written.
    """
    store = Store(history_file(folder))
    entries: list[HistoryEntry] = []
    try:
        if store.path.exists():
            store.check()
    except HistoryDamaged as error:
        aside, entries = store.set_aside()
        log.warning(f"{error}\nset aside as {aside.name}, {len(entries)} entries read from it")
    for path in listed(folder, f"*/{NODES_FOLDER}/*/{ANSWER_FILE}"):
        try:
            entries += fleet_entries([ANSWERS.read(path)])
        except SuiteError as error:
            log.warning(f"{path.parent.name} of a fleet is left out: {error}")
    sessions = 0
    for session in sorted({trace.parent for trace in listed(folder, "*/*.jsonl")}):
        found = entries_of(session)
        entries += found
        sessions += bool(found)
    store.add(entries)
    return store.path, sessions


def entries_of(session: Path) -> list[HistoryEntry]:
    """Return the entries that the traces of this session's folder give; each that is left out is logged."""
    try:
        entries, notes = history_entries(session_report(session), session)
    except SuiteError as error:
        entries, notes = [], [f"{session.name} is left out: {error}"]
    for note in notes:
        log.warning(note)
    return entries


def fleet_entries(answers: Iterable[Answer]) -> list[HistoryEntry]:
    """Return the entries that the nodes of a fleet made. Raises HistoryError for what is no entry."""
    try:
        return [build(HistoryEntry, held) for answer in answers for held in answer.history]
    except MISFITS as error:
        raise HistoryError(f"an answer holds what is no entry of the history: {error}") from error


class Plan(Frozen):
    """Sessions to remove and to keep."""

    removed: tuple[Path, ...]
    kept: tuple[Path, ...]
    running: tuple[Path, ...]
    """Kept in addition, since they have no verdict and may not have ended."""


def plan(folder: Path, *, keep: int) -> Plan:
    """Plan to keep the last `keep` sessions and what may still be running. Raises SuiteError for committed evidence."""
    if folder.resolve().is_relative_to(evidence_folder()):
        raise SuiteError(f"{folder}: committed evidence is never pruned; remove it by git if it must go")
    sessions = [path for path in listed(folder, "*/") if SESSION.fullmatch(path.name) and not path.is_symlink()]
    running = [path for path in sessions if _may_be_running(path)]
    ended = [path for path in sessions if path not in running]
    last = len(ended) - keep
    return Plan(removed=tuple(ended[: max(0, last)]), kept=tuple(ended[max(0, last) :]), running=tuple(running))


def prune(what: Plan, store: Store) -> int:
    """Add the sessions' entries to the store, remove their folders, and return the bytes freed. Raises SuiteError."""
    for session in what.removed:
        store.add(entries_of(session))
    return sum(_remove(session) for session in what.removed)


def _remove(session: Path) -> int:
    leaving = session.with_name(f".pruned-{session.name}")  # no half of it is taken for a session
    try:
        session.rename(leaving)
        size = sum(path.lstat().st_size for path in leaving.rglob("*") if not path.is_dir())
        shutil.rmtree(leaving)
    except FileNotFoundError:  # another prune has it
        return 0
    except OSError as error:
        raise SuiteError(f"{session}: cannot be removed: {error.strerror}; its figures are in the history") from error
    return size


def _may_be_running(session: Path) -> bool:
    try:
        if (session / VERDICT_FILE).exists():
            return False
        newest = max((path.lstat().st_mtime for path in session.iterdir()), default=session.stat().st_mtime)
    except OSError:  # it changes while it is looked at, or is another user's
        return True
    return time.time() - newest < 24 * 3600
