"""What a user answers to findings: which are meant, and whether a suspicion fails. Standard library only."""

import fnmatch
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from tunecheck.checks import CHECKS, problem_with
from tunecheck.core.errors import ConfigError
from tunecheck.core.finding import Finding, Status
from tunecheck.core.frozen import Frozen
from tunecheck.core.snapshot import RunSnapshot

FILES = ("tunecheck.toml", "pyproject.toml")
"""Files that may hold answers, the first one found in a folder or the folders above it."""


class Answers(Frozen):
    """The user's answers for one session."""

    ignore: Mapping[str, str] = field(default_factory=dict)
    """Check to the reason why what it finds is meant."""
    strict: bool = False
    """Whether a suspicion fails."""

    def before(self, run: RunSnapshot) -> "Answers":
        """Return these answers and the run's own, where these say nothing else."""
        return Answers(ignore={**run.ignore, **self.ignore}, strict=self.strict or run.strict)

    def applied(self, finding: Finding) -> Finding:
        """Return the finding as these answers have it."""
        if finding.status not in (Status.FAILED, Status.SUSPECTED):
            return finding
        if reason := self.ignore.get(finding.check):
            return replace(finding, status=Status.IGNORED, meant=reason)
        return replace(finding, status=Status.FAILED) if self.strict else finding

    def needless(self, findings: Iterable[Finding]) -> tuple[str, ...]:
        """Return the checks that are ignored although they found nothing."""
        found = {finding.check for finding in findings if finding.status in (Status.FAILED, Status.SUSPECTED)}
        return tuple(check for check in self.ignore if check not in found)


NO_ANSWERS = Answers()


class Settings(Frozen):
    """What a file answers for one script."""

    expect: tuple[str, ...] = ()
    """KEY=VALUE, as `--expect` takes it."""
    ignore: Mapping[str, str] = field(default_factory=dict)
    strict: bool = False
    steps: int | None = None


def read_ignored(given: Iterable[str]) -> dict[str, str]:
    """Return check to reason of these NAME=REASON. Raises ConfigError with every problem."""
    pairs = {words: words.partition("=") for words in given}
    wrong = (_problem(check, reason.strip(), f"--ignore {words}") for words, (check, _, reason) in pairs.items())
    if problems := [*filter(None, wrong)]:
        raise ConfigError(problems)
    return {check: reason.strip() for check, _, reason in pairs.values()}


def settings_for(script: str, folder: Path) -> Settings:
    """Return what tunecheck.toml or [tool.tunecheck] of pyproject.toml says of this script.

    The nearest file counts, from this folder upwards. Sections under `scripts` match the script by a glob and come
    after the common keys. Raises ConfigError with every problem.
    """
    for above in (folder, *folder.parents):
        for name in FILES:
            if (path := above / name).is_file() and (table := _table(path)) is not None:
                return _settings(path, table, script)
    return Settings()


def _table(path: Path) -> dict[str, Any] | None:
    """Return what the file says of tunecheck; None where it says nothing. Raises ConfigError where that is unknown."""
    try:
        held = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{path}: not valid TOML: {error}; texts stand in quotes, true and false do not"]) from error
    except (OSError, ValueError) as error:
        raise ConfigError([f"{path}: cannot be read for tunecheck's settings: {error}"]) from error
    if path.name == FILES[0]:
        return held
    table = held.get("tool", {}).get("tunecheck")
    if table is not None and not isinstance(table, dict):
        raise ConfigError([f"{path}: tool.tunecheck: should be a table (got {table!r})"])
    return table


_KEYS: dict[str, type[Any]] = {"expect": dict, "ignore": dict, "strict": bool, "steps": int}


def _settings(path: Path, table: Mapping[str, Any], script: str) -> Settings:
    scripts = table.get("scripts", {})
    if not isinstance(scripts, dict) or not all(isinstance(section, dict) for section in scripts.values()):
        raise ConfigError([f'{path}: scripts: should hold a section for each glob, such as [scripts."train_*.py"]'])
    common = {key: value for key, value in table.items() if key != "scripts"}
    matching = [section for glob, section in scripts.items() if fnmatch.fnmatch(script, glob)]
    if problems := [problem for section in (common, *scripts.values()) for problem in _misfits(path, section)]:
        raise ConfigError(problems)
    held: dict[str, Any] = {"expect": {}, "ignore": {}}
    for section in (common, *matching):
        for key, value in section.items():
            held[key] = held[key] | value if isinstance(value, dict) else value
    words = {key: str(value).lower() if isinstance(value, bool) else value for key, value in held["expect"].items()}
    return Settings(**{**held, "expect": tuple(f"{key}={word}" for key, word in words.items())})


def _misfits(path: Path, section: Mapping[str, Any]) -> Iterator[str]:
    for key, value in section.items():
        if key not in _KEYS:
            yield f"{path}: {key}: no such key; known keys: {', '.join(_KEYS)}, scripts"
        elif not isinstance(value, _KEYS[key]) or (key == "steps" and isinstance(value, bool)):
            kind = {dict: "a table", bool: "true or false", int: "a whole number"}[_KEYS[key]]
            yield f"{path}: {key}: should be {kind} (got {value!r})"
        elif key == "ignore":
            reasons = {check: reason.strip() if isinstance(reason, str) else "" for check, reason in value.items()}
            yield from filter(None, (_problem(name, why, f"{path}: ignore.{name}") for name, why in reasons.items()))


def _problem(check: str, reason: str, where: str) -> str:
    """Return what is wrong with this answer; empty where nothing is."""
    if check not in CHECKS:
        return f"{where}: {problem_with(check, ())}"
    return "" if reason else f'{where}: lacks a reason; for example {check}="sampled by weight"'
