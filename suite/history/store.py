"""The store of all nights: one SQLite file, by default beside the sessions' folders, from which it can be made again.

It lies with the reports because it is made of them, moves with them, and knows no other machine's; a runner whose
reports go into a new folder every night names another place in $TUNECHECK_HISTORY. A night is a row; its figures are
JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from suite.core.errors import HistoryDamaged, HistoryError
from suite.core.paths import reports_folder
from suite.history.night import Key, Night

HISTORY_FILE = "history.sqlite"
SCHEMA = 1
"""SQLite's user_version; raised when a reader of older stores would misread a newer one."""
APPLICATION = 0x74756E65
"""SQLite's application_id: "tune"."""
WAIT_SECONDS = 10.0
"""For another session that is writing: a write takes milliseconds."""

_COLUMNS = (
    "session",
    "started_at",
    "run",
    "fingerprint",
    "device",
    "majors",
    "versions",
    "outcome",
    "figures",
    "card",
    "needed_bytes",
)
_TABLE = f"CREATE TABLE IF NOT EXISTS nights ({', '.join(_COLUMNS)}, PRIMARY KEY (session, run))"
_WAY_OUT = "`tunecheck history --rebuild` sets it aside and makes it again from the sessions' folders"


def history_file(folder: Path | None = None) -> Path:
    """The store: $TUNECHECK_HISTORY, else in this folder of sessions, by default where sessions are written."""
    named = os.environ.get("TUNECHECK_HISTORY")
    return Path(named).expanduser() if named else (folder or reports_folder()) / HISTORY_FILE


class Store:
    """The nights in one file. A missing file holds none and is made by the first write."""

    def __init__(self, path: Path, *, wait_seconds: float = WAIT_SECONDS) -> None:
        self.path, self._wait_seconds = path, wait_seconds

    def add(self, nights: Iterable[Night]) -> None:
        """The store holds these nights, all or none; one that it held already is replaced. Raises HistoryError."""
        rows = [_row(night) for night in nights]
        marks = ", ".join("?" * len(_COLUMNS))
        with self._open() as connection:
            connection.execute("BEGIN IMMEDIATE")
            with connection:
                connection.execute(_TABLE)
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
                connection.execute(f"PRAGMA user_version = {SCHEMA}")
                connection.executemany(f"INSERT OR REPLACE INTO nights VALUES ({marks})", rows)

    def nights(self, *, run: str | None = None, key: Key | None = None, before: str | None = None) -> list[Night]:
        """The nights of this run and this key that began before, the oldest first. Raises HistoryError."""
        conditions: dict[str, str | None] = {"run = ?": run, "started_at < ?": before}
        if key is not None:
            conditions |= {"fingerprint = ?": key.fingerprint, "device = ?": key.device, "majors = ?": key.majors}
        asked = {words: value for words, value in conditions.items() if value is not None}
        return self._select(" AND ".join(asked) or "1", tuple(asked.values()))

    def peaks(self, fingerprint: str, card: str) -> list[Night]:
        """The judged nights of this fingerprint on a card of this name that know its need, the oldest first."""
        asked = "fingerprint = ? AND card = ? AND needed_bytes IS NOT NULL AND outcome IN ('pass', 'fail')"
        return self._select(asked, (fingerprint, card))

    def set_aside(self) -> tuple[Path, list[Night]]:
        """Rename the file; returns its new name and the nights that could still be read from it."""
        saved: list[Night] = []
        with contextlib.suppress(HistoryError):
            for night in self._each("1", ()):
                saved.append(night)  # one by one: a damaged file breaks off in the middle
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

    def _select(self, condition: str, values: Sequence[str]) -> list[Night]:
        return list(self._each(condition, values))

    def _each(self, condition: str, values: Sequence[str]) -> Iterator[Night]:
        if not self.path.exists():
            return
        with self._open() as connection:
            columns = ", ".join(_COLUMNS)
            query = f"SELECT {columns} FROM nights WHERE {condition} ORDER BY started_at, session, run"
            for row in connection.execute(query, values):
                yield _night(row)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path, timeout=self._wait_seconds, isolation_level=None)
            with contextlib.closing(connection):
                self._require_known(connection)
                yield connection
        except (sqlite3.Error, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._told(error) from error

    def _require_known(self, connection: sqlite3.Connection) -> None:
        """Raise HistoryError for somebody else's file and for another schema; an empty file is a new store."""
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (schema,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables and application != APPLICATION:
            raise HistoryError(f"{self.path}: an SQLite file, but not tunecheck's; name another in TUNECHECK_HISTORY")
        if tables and schema != SCHEMA:
            raise HistoryDamaged(f"{self.path}: schema {schema}, this tunecheck reads {SCHEMA}; {_WAY_OUT}")

    def _told(self, error: Exception) -> HistoryError:
        if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
            return HistoryError(
                f"{self.path}: another process has been writing for {self._wait_seconds:g} s; "
                "`tunecheck history --rebuild` adds later what is missing"
            )
        if isinstance(error, sqlite3.OperationalError | OSError):
            return HistoryError(f"{self.path}: cannot be used ({error}); name another file in TUNECHECK_HISTORY")
        return HistoryDamaged(f"{self.path}: damaged ({error}); {_WAY_OUT}")


def _row(night: Night) -> tuple[str | int | None, ...]:
    return (
        night.session,
        night.started_at,
        night.run,
        night.key.fingerprint,
        night.key.device,
        night.key.majors,
        json.dumps(night.versions),
        night.outcome,
        json.dumps(night.figures),
        night.card,
        night.needed_bytes,
    )


def _night(row: Sequence[str]) -> Night:
    held = dict(zip(_COLUMNS, row, strict=True))
    key = Key(fingerprint=held.pop("fingerprint"), device=held.pop("device"), majors=held.pop("majors"))
    versions, figures = json.loads(held.pop("versions")), json.loads(held.pop("figures"))
    return Night(
        **held,  # type: ignore[arg-type]
        key=key,
        versions=versions,
        figures={name: float(value) for name, value in figures.items()},
    )
