"""What a session does with the history: it holds its figures against the nights before, and joins them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from suite.core.errors import HistoryDamaged, HistoryError, SuiteError
from suite.core.paths import baselines_folder
from suite.history.baseline import Baseline, baseline_file, baseline_for, read_baseline, require_device
from suite.history.night import Night, changed, nights_of
from suite.history.store import Store, history_file
from suite.results.baseline import FigureComparison, compare_to_baseline
from suite.results.figures import FIGURES

if TYPE_CHECKING:
    from suite.results import Report


def with_history(report: Report, folder: Path) -> Report:
    """The report with the standing of each of its figures, and with a note of whatever kept one from being told.

    The store is read and not written.
    """
    notes: list[str] = []
    standings: list[FigureComparison] = []
    store = Store(history_file(folder.parent))
    for night in nights_of(report, folder, notes.append):
        try:
            standings += standings_of(night, store, notes.append)
        except HistoryError as error:
            notes.append(f"{night.run} is not compared with the nights before: {error}")
    return dataclasses.replace(report, figure_comparisons=tuple(standings), history_notes=tuple(notes))


def remember(report: Report, folder: Path) -> None:
    """The store holds this session's nights. Raises HistoryError; all that was to be added is in the folder."""
    nights = nights_of(report, folder, lambda note: None)  # told by with_history
    if nights:
        Store(history_file(folder.parent)).add(nights)


def standings_of(night: Night, store: Store, say: Callable[[str], None]) -> list[FigureComparison]:
    """The night's figures against the accepted baseline, else against the nights of its key before it.

    Raises HistoryError when the store or the baseline cannot be used.
    """
    baseline, note = baseline_for(night, baselines_folder())
    if note:
        say(note)
    return held_against(night, _passed_before(night, store), baseline)


def _passed_before(night: Night, store: Store) -> list[Night]:
    return [earlier for earlier in store.nights(key=night.key, before=night.started_at) if earlier.outcome == "pass"]


def against_file(night: Night, store: Store, path: Path | None, say: Callable[[str], None]) -> list[FigureComparison]:
    """The night's figures against the baseline in this file; without one as in a session.

    Raises HistoryError for a file that cannot be used, also since it is of another device or configuration.
    """
    if path is None:
        return standings_of(night, store, say)
    baseline = read_baseline(path)
    require_device(baseline, night, path)
    if baseline.key != night.key:
        raise HistoryError(
            f"{path}: accepted for {baseline.run} as {baseline.key.fingerprint} with {baseline.key.majors}, and the "
            f"last night of {night.run} is {night.key.fingerprint} with {night.key.majors}: name another file"
        )
    return held_against(night, _passed_before(night, store), baseline)


def held_against(night: Night, before: Sequence[Night], baseline: Baseline | None) -> list[FigureComparison]:
    """The standing of each figure of the night after these nights, the oldest first."""
    made = []
    for name, figure in FIGURES.items():
        if name not in night.figures:
            continue
        accepted = baseline.figures.get(name) if baseline else None
        standing = compare_to_baseline(
            night.run,
            figure,
            night.figures[name],
            [earlier.figures[name] for earlier in before if name in earlier.figures],
            accepted=accepted,
            baseline=baseline_file(Path(), night.run, night.key.device).name if accepted else "",
        )
        if standing.status in ("worse", "suspect") and before:
            standing = dataclasses.replace(standing, changed=changed(before[-1], night))
        made.append(standing)
    return made


def rebuild(folder: Path, say: Callable[[str], None]) -> tuple[Path, int]:
    """The store holds the nights of all sessions in this folder, and those that it held of sessions that are gone.

    A store that cannot be used is set aside first, and what can still be read of it is kept. Returns its path and the
    number of sessions read; `say` hears of what was left out. Raises HistoryError when nothing can be written.
    """
    from suite.results.rejudge import session_report

    store = Store(history_file(folder))
    nights = _rescued(store, say)
    sessions = 0
    for session in sorted(path for path in folder.glob("*/") if any(path.glob("*.jsonl"))):
        try:
            found = nights_of(session_report(session), session, say)
            nights += found
            sessions += bool(found)
        except SuiteError as error:
            say(f"{session.name} is left out: {error}")
    store.add(nights)
    return store.path, sessions


def _rescued(store: Store, say: Callable[[str], None]) -> list[Night]:
    if not store.path.exists():
        return []
    try:
        store.check()
        return []
    except HistoryDamaged as error:
        aside, saved = store.set_aside()
        say(f"{error}\nset aside as {aside.name}, {len(saved)} nights read from it")
        return saved
