"""Accepted baselines: median and scatter of a run's figures on a device, in a small JSON file to be committed."""

import dataclasses
import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tunecheck.core.errors import HistoryError
from tunecheck.core.frozen import Frozen
from tunecheck.core.paths import baselines_folder
from tunecheck.core.text import file_stem
from tunecheck.history.store import HistoryEntry, Key
from tunecheck.results.baseline import FEWEST_SESSIONS, FIGURES, FigureBaseline, baseline_of
from tunecheck.results.stored import Stored

DIGITS = 9
"""Of a number in the file, which people read in reviews."""


class AcceptedBaseline(Frozen):
    """A baseline that does not move with further sessions."""

    schema: int = 1
    """Raised when a reader of older baselines would misread a newer one."""
    run: str
    key: Key
    accepted_at: str
    """ISO date, UTC."""
    versions: dict[str, str]
    """Of the last session in it."""
    figures: dict[str, FigureBaseline]


_REMEDY = "`tunecheck baseline accept RUN` makes one"
_BASELINE = Stored(AcceptedBaseline, what="a baseline", remedy=_REMEDY, error=HistoryError)


def baseline_file(folder: Path, run: str, device: str) -> Path:
    """Return its path: <tier>-<run>.<device>.json."""
    words = re.sub(r"[^a-z0-9.]+", "-", device.lower()).strip("-")
    return folder / f"{file_stem(run)}.{words}.json"


def accepted_from(entries: Sequence[HistoryEntry], *, run: str) -> AcceptedBaseline:
    """Return the baseline of the last entry's key, from its passed entries. Raises HistoryError for too few."""
    same = [entry for entry in entries if entry.outcome == "pass" and entry.key == entries[-1].key]
    held = {name: [entry.figures[name] for entry in same if name in entry.figures] for name in FIGURES}
    figures = {name: _rounded(baseline_of(of)) for name, of in held.items() if len(of) >= FEWEST_SESSIONS}
    if not figures:
        on = f" on {same[-1].key.device}" if same else ""
        told = f"{len(same)} of {FEWEST_SESSIONS} passed sessions of the same configuration{on}"
        raise HistoryError(f"{run}: no baseline: {told}; run it more often first")
    today = datetime.now(UTC).date().isoformat()
    return AcceptedBaseline(run=run, key=same[-1].key, accepted_at=today, versions=same[-1].versions, figures=figures)


def read_baseline(path: Path) -> AcceptedBaseline:
    """Read a baseline. Raises HistoryError for a file that is unreadable, foreign, or of another schema."""
    baseline = _BASELINE.read(path)
    for name, one in baseline.figures.items():
        if not (math.isfinite(one.median) and 0 <= one.deviation < math.inf):
            raise HistoryError(f"{path}: {name}: no median with its deviation: {one.median}, {one.deviation}")
    return baseline


def baseline_for(entry: HistoryEntry, path: Path | None = None) -> tuple[AcceptedBaseline | None, str]:
    """Return the baseline in this file, else the accepted one of the entry's device, with a note on why it is not used.

    An accepted one of another configuration or of other major versions is not used, but one that is named raises
    HistoryError, as do files of another device and those that cannot be read.
    """
    file = path or baseline_file(baselines_folder(), entry.run, entry.key.device)
    if path is None and not file.exists():
        return None, ""
    if (baseline := read_baseline(file)).key.device != entry.key.device:
        raise HistoryError(
            f"{file}: a baseline of {baseline.key.device}, and {entry.session} ran on {entry.key.device}: figures of "
            f"one device say nothing about another. `tunecheck baseline accept {entry.run}` makes one for this device"
        )
    if baseline.key == entry.key:
        return baseline, ""
    was, now = (f"{key.fingerprint}, {key.majors}" for key in (baseline.key, entry.key))
    other = f"it was accepted for another configuration or other versions ({was}; now {now})"
    if path is not None:
        raise HistoryError(f"{file}: {other}: name another file")
    return None, f"{file.name} is not used: {other}. `tunecheck baseline accept {entry.run}` makes a new one"


def _rounded(found: FigureBaseline) -> FigureBaseline:
    median, deviation = (float(f"{value:.{DIGITS}g}") for value in (found.median, found.deviation))
    return dataclasses.replace(found, median=median, deviation=deviation)
