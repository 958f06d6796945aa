"""What a user answers beforehand, as `--ignore` or in a file: expectations, and what is meant."""

import fnmatch
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tunecheck.config.problems import report_limits, validated
from tunecheck.config.source import Document
from tunecheck.core.errors import ConfigError
from tunecheck.models.description import Section

FILES = ("tunecheck.toml", "pyproject.toml")
"""Files that may hold answers, the first one found in a folder or the folders above it."""


class Settings(Section):
    """What a file answers for one script."""

    expect: dict[str, Any] = {}  # noqa: RUF012 pydantic copies it
    """Key to value, as `--expect` takes them."""
    ignore: dict[str, str] = {}  # noqa: RUF012 likewise
    strict: bool = False
    steps: int | None = None


class SettingsFile(Settings):
    """What it answers for all scripts, and for those that a glob matches."""

    scripts: dict[str, Settings] = {}  # noqa: RUF012 likewise


def read_ignored(given: Iterable[str]) -> dict[str, str]:
    """Return check to reason of these NAME=REASON. Raises ConfigError with every problem."""
    pairs = {words: words.partition("=") for words in given}
    ignore = {check: reason.strip() for check, _, reason in pairs.values()}
    document = Document({"ignore": ignore})
    document.places |= {("ignore", check): f"--ignore {words}" for words, (check, _, _) in pairs.items()}
    report_limits(document)
    if document.problems:
        raise ConfigError(document.problems)
    return ignore


def settings_for(script: str, folder: Path) -> Settings:
    """Return what the nearest tunecheck.toml or [tool.tunecheck], from this folder upwards, says of this script.

    Sections under `scripts` match the script by a glob and come after the common keys. Raises ConfigError.
    """
    for path in (above / name for above in (folder, *folder.parents) for name in FILES):
        if path.is_file() and (table := _table(path)) is not None:
            return _settings(path, table, script)
    return Settings()


def _table(path: Path) -> dict[str, Any] | None:
    """Return what the file says of tunecheck; None where it says nothing. Raises ConfigError where that is unknown."""
    try:
        held = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{path}: not valid TOML: {error}; quote texts, but not true and false"]) from error
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError([f"{path}: cannot be read for tunecheck's settings: {error}"]) from error
    if path.name == FILES[0]:
        return held
    tools = held.get("tool")
    table = tools.get("tunecheck") if isinstance(tools, dict) else None
    if table is not None and not isinstance(table, dict):
        raise ConfigError([f"{path}: tool.tunecheck: should be a table (got {table!r})"])
    return table


def _settings(path: Path, table: dict[str, Any], script: str) -> Settings:
    document = Document(table, {(): str(path)})
    settings = validated(SettingsFile, document)
    scripts = settings.scripts if settings else {}
    for section in ((), *(("scripts", glob) for glob in scripts)):
        report_limits(document, section)
    if settings is None or document.problems:
        raise ConfigError(document.problems)
    held: dict[str, Any] = {}
    for one in (settings, *(of_script for glob, of_script in scripts.items() if fnmatch.fnmatch(script, glob))):
        for key, value in one.model_dump(exclude_unset=True, exclude={"scripts"}).items():
            held[key] = {**held.get(key, {}), **value} if isinstance(value, dict) else value
    return Settings(**held)
