"""Records as JSON files with a schema: written whole, and refused where they are foreign, older or damaged."""

import json
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from tunecheck.core.errors import SuiteError, TraceError
from tunecheck.core.files import read_json, write_whole
from tunecheck.core.trace import spelled
from tunecheck.core.typed import MISFITS, build
from tunecheck.results import Report

R = TypeVar("R")


def plain(record: Any) -> dict[str, Any]:
    """Return all fields as values of JSON, non-finite numbers as text."""
    return cast(dict[str, Any], spelled(record))


def without_secrets(record: R) -> R:
    """Return the record as it is read back from a file, which holds no secrets."""
    return cast(R, build(type(record), plain(record)))


def json_text(held: Any, indent: int | None = 1) -> str:
    return json.dumps(held, allow_nan=False, ensure_ascii=False, indent=indent) + "\n"


def write_record(record: Any, path: Path, indent: int | None = 1) -> Path:
    """Write the record atomically and return the path. Raises SuiteError when the folder cannot be written."""
    write_whole(path, json_text(plain(record), indent))
    return path


class Stored(Generic[R]):
    """A kind of record in files."""

    def __init__(self, kind: type[R], *, what: str, remedy: str, error: type[SuiteError] = TraceError) -> None:
        """`what` such a file is and the `remedy` for one that cannot be used are part of the `error` messages."""
        self._kind, self._what, self._remedy, self._error = kind, what, remedy, error
        self._schema: int = vars(kind)["schema"]  # the default of this field, the only one that is read

    def read(self, path: Path) -> R:
        """Read a file. Raises the kind's error for one that is unreadable, foreign, damaged, or of another schema."""
        try:
            held = read_json(path)
        except (OSError, ValueError) as error:
            raise self._error(f"{path}: cannot be read as JSON: {error}; it should be {self._what}") from error
        return self.built(held, str(path))

    def built(self, held: Any, source: str) -> R:
        """Build a record from plain data, as `read` does."""
        if not isinstance(held, dict) or "schema" not in held:
            raise self._error(f"{source}: not {self._what}")
        if held["schema"] != self._schema:
            version = held.get("tunecheck_version") or held.get("tunecheck")
            found = f"schema {held['schema']}" + (f", written by tunecheck {version}" if version else "")
            raise self._error(f"{source}: {found}; this tunecheck reads {self._schema}; {self._remedy}")
        try:
            return cast(R, build(self._kind, held))
        except MISFITS as error:
            raise self._error(f"{source}: damaged ({type(error).__name__}: {error}); {self._remedy}") from error


VERDICT_FILE = "verdict.json"
_WHAT = f"a verdict of tunecheck; name the {VERDICT_FILE} of a session's folder"
VERDICTS = Stored(Report, what=_WHAT, remedy="judge the traces beside it again")


def write_verdict(report: Report, folder: Path) -> Path:
    return write_record(report, folder / VERDICT_FILE)
