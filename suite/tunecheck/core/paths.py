"""Folders: what tunecheck ships, a user's own files, the cache of models and data."""

import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from tunecheck.core.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parents[1]


def cache_folder() -> Path:
    return from_home(os.environ.get("TUNECHECK_CACHE") or "~/.cache/tunecheck")


def from_home(named: str) -> Path:
    """Return the path with its ~ replaced. Raises ConfigError where nobody knows that home: of a bare user number."""
    try:
        return Path(named).expanduser()
    except RuntimeError as error:
        remedy = "set HOME, or name a whole path ($TUNECHECK_CACHE is that of the cache)"
        raise ConfigError([f"{named}: there is no such home directory; {remedy}"]) from error


def checkout_folder() -> Path | None:
    """Return the checkout that this package runs from; None where it is installed from a wheel."""
    return root if ((root := _PACKAGE.parents[1]) / "pyproject.toml").is_file() and (root / "tiers").is_dir() else None


def shipped_folder() -> Path:
    """Return the folder with the shipped configs/ and tiers/: the checkout, else the folder that the wheel holds."""
    return checkout_folder() or _PACKAGE / "shipped"


def project_folder() -> Path:
    """Return the user's folder (configs/, reports/): the checkout that the current folder lies in, else that folder."""
    root, here = checkout_folder(), Path.cwd()
    return root if root is not None and here.is_relative_to(root) else here


def configs_folders() -> tuple[Path, ...]:
    """Return the folders of YAML files, a user's own before the shipped one.

    A user's own is $TUNECHECK_CONFIGS, else the project folder's configs/. Raises ConfigError if a named one is none.
    """
    named = os.environ.get("TUNECHECK_CONFIGS")
    own = from_home(named).absolute() if named else project_folder() / "configs"
    there = os.path.isdir(own)  # False, too, for a path that is too long or may not be looked at
    if named and not there:
        raise ConfigError([f"{named}: there is no such folder; --configs or $TUNECHECK_CONFIGS names it"])
    folders = [own] if there else []
    return tuple(dict.fromkeys([*folders, shipped_folder() / "configs"]))


def without_runs(tiers: Iterable[str]) -> str:
    """Return the problem of tiers that have no run, with its remedy."""
    where = f"no run of {' and '.join(tiers)} in {', '.join(map(str, configs_folders()))}"
    return f"{where}; set TUNECHECK_CONFIGS to a folder that has one"


def config_file(relative: str) -> Path:
    """Return the file at this path below the first configs folder that has it, else below the last one."""
    candidates = [folder / relative for folder in configs_folders()]
    return next((path for path in candidates if os.path.isfile(path)), candidates[-1])


def config_files(folder: str) -> list[Path]:
    """Return this folder's YAML files by name; a user's own hides a shipped one. ConfigError if it may not be read."""
    found: dict[str, Path] = {}
    for configs in reversed(configs_folders()):
        try:
            names = [entry.name for entry in os.scandir(configs / folder)]
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise ConfigError([f"{configs / folder}: cannot be read: {error.strerror}"]) from error
        found |= {name.removesuffix(".yaml"): configs / folder / name for name in names if name.endswith(".yaml")}
    return [found[name] for name in sorted(found)]


def session_folder() -> Path:
    return reports_folder() / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.getpid()}"


def reports_folder() -> Path:
    """Return the folder of the sessions' folders, absolute: a watched script may change its directory."""
    # There is no option for it: before its plugins are read, pytest takes the value of an unknown one for a path
    return Path(os.environ.get("TUNECHECK_REPORTS") or project_folder() / "reports" / "runs").absolute()


def evidence_folder() -> Path:
    return project_folder() / "reports" / "evidence"


def baselines_folder() -> Path:
    return Path(os.environ.get("TUNECHECK_BASELINES") or project_folder() / "baselines")


def python_path() -> list[str]:
    """Return what a child process needs before its own import path to find this package; empty where it is installed.

    A folder of site-packages put there would hide modules of the standard library.
    """
    return [] if (root := checkout_folder()) is None else [str(root / "suite")]
