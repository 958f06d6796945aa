"""Compare a session's figures with previous sessions, and add them to the history."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tunecheck.core.errors import HistoryDamaged, HistoryError, SuiteError
from tunecheck.core.log import log
from tunecheck.core.typed import MISFITS, build
from tunecheck.history.baseline import AcceptedBaseline, baseline_file, baseline_for
from tunecheck.history.entry import HistoryEntry, changed, history_entries
from tunecheck.history.store import RECENT, Store, history_file
from tunecheck.results.baseline import FigureComparison, compare_to_baseline
from tunecheck.results.figures import FIGURES
from tunecheck.results.fleet import ANSWER_FILE, NODES_FOLDER, Answer, read_answer

if TYPE_CHECKING:
    from tunecheck.results import Report


def with_history(report: "Report", folder: Path) -> "Report":
    """Return the report with each figure compared to its baseline, and a note on each that could not be.

    The store is read and not written.
    """
    entries, notes = history_entries(report, folder)
    comparisons: list[FigureComparison] = []
    store = Store(history_file(folder.parent))
    for entry in entries:
        try:
            found, note = compare_to_history(entry, store)
            comparisons += found
            notes += [note] if note else []
        except HistoryError as error:
            notes.append(f"{entry.run} is not compared with previous sessions: {error}")
    return dataclasses.replace(report, figure_comparisons=tuple(comparisons), history_notes=tuple(notes))


def remember(report: "Report", folder: Path) -> None:
    """Add this session's entries to the store. Raises HistoryError; the session's folder still holds all of them."""
    entries, _ = history_entries(report, folder)  # with_history has reported the same
    if entries:
        Store(history_file(folder.parent)).add(entries)


def compare_to_history(
    entry: HistoryEntry, store: Store, path: Path | None = None
) -> tuple[list[FigureComparison], str]:
    """Compare the entry's figures to the baseline in this file, else to the accepted one, else to previous entries.

    Previous entries are those of its key. The note says why an accepted baseline is not used. Raises HistoryError when
    the store or the baseline cannot be used.
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
    number of sessions read; each that is left out is logged. Raises HistoryError when nothing can be written.
    """
    store = Store(history_file(folder))
    entries: list[HistoryEntry] = []
    try:
        if store.path.exists():
            store.check()
    except HistoryDamaged as error:
        aside, entries = store.set_aside()
        log.warning(f"{error}\nset aside as {aside.name}, {len(entries)} entries read from it")
    for path in sorted(folder.glob(f"*/{NODES_FOLDER}/*/{ANSWER_FILE}")):
        try:
            entries += fleet_entries([read_answer(path)])
        except SuiteError as error:
            log.warning(f"{path.parent.name} of a fleet is left out: {error}")
    sessions = 0
    for session in sorted(path for path in folder.glob("*/") if any(path.glob("*.jsonl"))):
        found = entries_of(session)
        entries += found
        sessions += bool(found)
    store.add(entries)
    return store.path, sessions


def entries_of(session: Path) -> list[HistoryEntry]:
    """Return the entries that the traces of this session's folder give; each that is left out is logged."""
    from tunecheck.results.rejudge import session_report

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
