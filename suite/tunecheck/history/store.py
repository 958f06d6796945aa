"""The history: figures of each finished run of each session, in one SQLite file that sessions' folders can rebuild.

It lies beside them; a CI runner whose reports go into a new folder every time sets $TUNECHECK_HISTORY.
"""

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from typing import Any

from tunecheck.checks.telemetry import busy_host
from tunecheck.core.errors import HistoryDamaged, HistoryError, SuiteError
from tunecheck.core.evidence import Evaluation, LiveTensors, Phase, Setup
from tunecheck.core.files import ANY_BYTES, open_file
from tunecheck.core.frozen import Frozen
from tunecheck.core.paths import from_home, reports_folder
from tunecheck.core.trace import Trace, read
from tunecheck.core.typed import MISFITS, build
from tunecheck.core.units import GIB
from tunecheck.results import Report, RunReport

LIBRARIES = ("torch", "transformers", "peft", "bitsandbytes")
"""Libraries whose major version starts a new baseline; the effect of a minor one is what a comparison shall find."""


class Key(Frozen):
    """What comparable entries have in common."""

    fingerprint: str
    device: str
    """Name and memory of the GPU, with its cap if it had one; model and cores of the CPU."""
    majors: str
    """Such as "torch 2, transformers 5, peft 0, bitsandbytes 0"."""


class HistoryEntry(Frozen):
    """One run of one session whose training finished."""

    session: str
    started_at: str
    """Of the session, UTC, ISO 8601."""
    run: str
    """Tier and id."""
    key: Key
    versions: dict[str, str]
    outcome: str
    """Only entries with "pass" are part of a baseline."""
    figures: dict[str, float]
    card: str = ""
    """Name of the GPU; empty on the CPU and under --vram-cap."""
    needed_bytes: int | None = None
    """GPU memory that the run needed, as the allocator counted it; None on the CPU."""


def history_entries(report: Report, folder: Path) -> tuple[list[HistoryEntry], list[str]]:
    """Return the entries of this session, and a note on each run whose trace cannot be read."""
    entries, notes = [], []
    for row in (row for row in report.runs if row.trace_file):
        try:
            entry = history_entry(row, read(folder / row.trace_file), session=folder.name, started_at=report.started_at)
        except SuiteError as error:
            notes.append(f"{row.name} is not in the history: {error}")
        else:
            entries += [entry] if entry else []
    return entries, notes


def history_entry(row: RunReport, trace: Trace, *, session: str, started_at: str) -> HistoryEntry | None:
    """Return the run's entry; None when its training did not finish."""
    setups, environment = trace.records(Setup), trace.header.environment
    if not setups or not trace.main.finished:
        return None
    setup, commit = setups[-1], (environment.get("git") or {}).get("commit")
    drivers = [gpu.get("driver_version") for gpu in environment.get("gpus") or ()] if setup.device != "cpu" else []
    others = {"driver": drivers[0] if drivers else None, "commit": commit and commit[:12]}
    return HistoryEntry(
        session=session,
        started_at=started_at,
        run=row.name,
        key=Key(fingerprint=trace.header.fingerprint, device=device(setup, environment), majors=majors(setup)),
        versions={**setup.versions, **{name: version for name, version in others.items() if version}},
        outcome=row.outcome,
        figures=figures_of(row, trace),
        card=setup.device_name if setup.device != "cpu" and setup.vram_cap_bytes is None else "",
        needed_bytes=needed_bytes(trace),
    )


def figures_of(row: RunReport, trace: Trace) -> dict[str, float]:
    """Return the figures of a run whose training finished, by name, without those that were not measured.

    On a GPU the allocator's peak stands for the memory, on a CPU live tensors and the resident set do. A throughput
    that other processes slowed down is left out, as by the checks of speed. A watched training has no evaluation of
    fixed rows, so its later losses stand for it.
    """
    heldout = [found.loss for found in trace.main.all(Evaluation) if found.split == "heldout"]
    live = [found.bytes for found in trace.main.all(LiveTensors)]
    on_card = row.peak_kind == "allocator"
    measured: dict[str, float | None] = {
        "tokens_per_second": None if busy_host(trace) else row.tokens_per_second,
        "peak_allocated_bytes": row.peak_bytes if on_card else None,
        "live_tensor_bytes": live[-1] if live and not on_card else None,
        "resident_bytes": row.peak_bytes if row.peak_kind == "resident" else None,
        "probe_loss": row.probe_loss_end,
        "heldout_loss": heldout[-1] if heldout else None,
        "training_loss": mean(row.losses[len(row.losses) // 2 :]) if row.tier == "watch" and row.losses else None,
    }
    return {name: float(value) for name, value in measured.items() if value is not None}


def needed_bytes(trace: Trace) -> int | None:
    """Return the allocator's peak of all finished attempts, probes included: a GPU must have it. None without one."""
    phases = [phase for attempt in trace.attempts if attempt.finished for phase in attempt.all(Phase)]
    peaks = [phase.peak_allocated_bytes for phase in phases] + [phase.probes_peak_allocated_bytes for phase in phases]
    return max((peak for peak in peaks if peak is not None), default=None)


def device(setup: Setup, environment: dict[str, Any]) -> str:
    """Return the device in the words of Key.device."""
    if setup.device == "cpu":
        cpu = environment.get("cpu") or {}
        return f"{cpu.get('model') or 'a CPU without a name'}, {cpu.get('usable_cores') or setup.threads} cores"
    total_bytes = (setup.cuda or {}).get("total_bytes")
    memory = f", {total_bytes / GIB:.0f} GiB" if total_bytes else ""
    cap = "" if setup.vram_cap_bytes is None else f", capped at {setup.vram_cap_bytes / GIB:.1f} GiB"
    return f"{setup.device_name or 'a GPU without a name'}{memory}{cap}"


def majors(setup: Setup) -> str:
    """Return the major versions in the words of Key.majors."""
    held = {name: setup.versions[name].partition(".")[0] for name in LIBRARIES if setup.versions.get(name)}
    return ", ".join(f"{name} {version}" for name, version in held.items())


def changed(before: HistoryEntry, after: HistoryEntry) -> str:
    """Return the versions that differ: "torch 2.13.0 → 2.13.1, commit 65d9651 → a0012b6"; empty for none."""
    names = dict.fromkeys([*before.versions, *after.versions])
    pairs = [(name, before.versions.get(name, "none"), after.versions.get(name, "none")) for name in names]
    return ", ".join(f"{name} {old} → {new}" for name, old, new in pairs if old != new)


SCHEMA = 2
"""SQLite's user_version; raised when a reader of older stores would misread a newer one."""
RECENT = 300
"""Entries that a comparison reads: ten times those of a baseline, since not every entry has every figure."""
APPLICATION = 0x74756E65
"""SQLite's application_id: "tune"."""
WAIT_SECONDS = 10.0
"""For another session that is writing: a write takes milliseconds."""

_KEY = tuple(field.name for field in fields(Key))
_COLUMNS = tuple(name for one in fields(HistoryEntry) for name in (_KEY if one.name == "key" else (one.name,)))
_TABLE = f"CREATE TABLE IF NOT EXISTS entries ({', '.join(_COLUMNS)}, PRIMARY KEY (session, run))"
_INDICES = (
    "CREATE INDEX IF NOT EXISTS entries_by_key ON entries (fingerprint, device, majors, outcome, started_at)",
    "CREATE INDEX IF NOT EXISTS entries_by_run ON entries (run, started_at)",
    "CREATE INDEX IF NOT EXISTS entries_by_card ON entries (fingerprint, card, started_at)",
)
"""One for each question: a fleet adds ten thousand rows in one session. A store without them is slower, not wrong."""
_WAY_OUT = "`tunecheck history --rebuild` sets it aside and rebuilds it from the sessions' folders"


def history_file(folder: Path | None = None) -> Path:
    """Return the store's path: $TUNECHECK_HISTORY, else in this folder of sessions, by default the reports folder."""
    named = os.environ.get("TUNECHECK_HISTORY")
    return from_home(named) if named else (folder or reports_folder()) / "history.sqlite"


class Store:
    """Entries in one file. A missing file holds none and is made by the first write."""

    def __init__(self, path: Path, *, wait_seconds: float = WAIT_SECONDS) -> None:
        self.path, self._wait_seconds = path, wait_seconds

    def add(self, entries: Iterable[HistoryEntry]) -> None:
        """Add these entries, all or none; one that is there already is replaced. Raises HistoryError."""
        rows = [_row(entry) for entry in entries]
        marks = ", ".join("?" * len(_COLUMNS))
        with self._open() as connection:
            connection.execute("BEGIN IMMEDIATE")
            with connection:
                for statement in (_TABLE, *_INDICES):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
                connection.execute(f"PRAGMA user_version = {SCHEMA}")
                connection.executemany(f"INSERT OR REPLACE INTO entries VALUES ({marks})", rows)

    def entries(
        self,
        *,
        run: str | None = None,
        key: Key | None = None,
        before: str | None = None,
        outcome: str | None = None,
        last: int | None = None,
    ) -> list[HistoryEntry]:
        """Return the `last` of the matching entries that began `before`, the oldest first. Raises HistoryError."""
        conditions: dict[str, str | None] = {"run = ?": run, "outcome = ?": outcome, "started_at < ?": before}
        if key is not None:
            conditions |= {"fingerprint = ?": key.fingerprint, "device = ?": key.device, "majors = ?": key.majors}
        given = {words: value for words, value in conditions.items() if value is not None}
        return list(self._newest(" AND ".join(given) or "1", tuple(given.values()), last))[::-1]

    def runs(self) -> list[str]:
        return [run for (run,) in self._rows("SELECT DISTINCT run FROM entries ORDER BY run")]

    def peaks(self, fingerprint: str) -> list[tuple[str, int, str]]:
        """Return beginning, largest need and GPU of each session's judged runs of this fingerprint that have a need."""
        judged = "fingerprint = ? AND card != '' AND needed_bytes IS NOT NULL AND outcome IN ('pass', 'fail')"
        peak = "SELECT started_at, max(needed_bytes), card FROM entries"
        return list(self._rows(f"{peak} WHERE {judged} GROUP BY card, started_at", fingerprint))

    def set_aside(self) -> tuple[Path, list[HistoryEntry]]:
        """Rename the file; return its new name and the entries that could still be read from it."""
        saved: list[HistoryEntry] = []
        with contextlib.suppress(HistoryError):
            for entry in self._newest("1", ()):
                saved.append(entry)  # one by one: a damaged file breaks off in the middle
        aside = self.path.with_name(f"{self.path.name}.unusable-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
        try:
            self.path.rename(aside)
        except OSError as error:
            raise HistoryError(f"{self.path}: cannot be set aside: {error.strerror}; move it away yourself") from error
        return aside, saved

    def check(self) -> None:
        """Raise HistoryError unless the whole file can be read."""
        with self._open() as connection:
            (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if answer != "ok":
                raise HistoryDamaged(f"{self.path}: damaged ({answer}); {_WAY_OUT}")

    def _newest(self, condition: str, values: Sequence[str], last: int | None = None) -> Iterator[HistoryEntry]:
        order = "started_at DESC, session DESC, run DESC LIMIT ?"
        query = f"SELECT {', '.join(_COLUMNS)} FROM entries WHERE {condition} ORDER BY {order}"
        yield from self._rows(query, *values, -1 if last is None else last, make=_entry)

    def _rows(self, query: str, *values: Any, make: Callable[[Any], Any] = tuple) -> Iterator[Any]:
        if self.path.exists():
            with self._open() as connection:
                yield from map(make, connection.execute(query, values))

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                open_file(self.path, ANY_BYTES).close()  # SQLite would wait at a FIFO
            connection = sqlite3.connect(self.path, timeout=self._wait_seconds, isolation_level=None)
            with contextlib.closing(connection):
                self._require_known(connection)
                yield connection
        except (sqlite3.Error, OSError, *MISFITS) as error:
            raise self._explained(error) from error

    def _require_known(self, connection: sqlite3.Connection) -> None:
        """Raise HistoryError for somebody else's file and for another schema; an empty file is a new store."""
        # one statement: between two of them another process may make the table
        held = "application_id, user_version, (SELECT count(*) FROM sqlite_master)"
        query = f"SELECT {held} FROM pragma_application_id, pragma_user_version"
        application, schema, tables = connection.execute(query).fetchone()
        if tables and application != APPLICATION:
            raise HistoryError(f"{self.path}: an SQLite file, but not tunecheck's; name another in TUNECHECK_HISTORY")
        if tables and schema != SCHEMA:
            raise HistoryDamaged(f"{self.path}: schema {schema}, this tunecheck reads {SCHEMA}; {_WAY_OUT}")

    def _explained(self, error: Exception) -> HistoryError:
        if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
            why = f"another process has been writing for {self._wait_seconds:g} s"
            return HistoryError(f"{self.path}: {why}; `tunecheck history --rebuild` adds later what is missing")
        if isinstance(error, sqlite3.OperationalError | OSError):
            return HistoryError(f"{self.path}: cannot be used ({error}); name another file in TUNECHECK_HISTORY")
        return HistoryDamaged(f"{self.path}: damaged ({error}); {_WAY_OUT}")


def _row(entry: HistoryEntry) -> tuple[str | int | None, ...]:
    held = {**asdict(entry), **asdict(entry.key)}
    return tuple(json.dumps(value) if isinstance(value := held[name], dict) else value for name in _COLUMNS)


def _entry(row: Sequence[str]) -> HistoryEntry:
    held = dict(zip(_COLUMNS, row, strict=True))
    key = {name: held.pop(name) for name in _KEY}
    texts = {name: json.loads(held[name]) for name in ("versions", "figures")}
    entry: HistoryEntry = build(HistoryEntry, {**held, "key": key, **texts})
    return entry
