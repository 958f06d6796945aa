"""References: a run names its model and its data set, each a file of its own."""

import os
from pathlib import Path
from typing import Any

from tunecheck.config.source import Document, parse
from tunecheck.core.errors import ConfigError
from tunecheck.core.paths import config_file, config_files, configs_folders, project_folder
from tunecheck.core.spelling import nearest

REFERENCES = {"model": "models", "data": "data"}
"""Key of a run to the folder under configs/ whose files it may name."""


def known_names(key: str) -> list[str]:
    """Return the names that `key` may refer to, sorted."""
    return [path.stem for path in config_files(REFERENCES[key])]


def described(key: str, name: Any) -> Document:
    """Return the document that `key` refers to by this name. Raises ConfigError for a name that no file has."""
    if name not in (known := known_names(key)):
        hint = nearest(name, known) if isinstance(name, str) else ""
        raise ConfigError([f"configs/{REFERENCES[key]} has no {name!r}{hint}; known: {', '.join(known)}"])
    path = config_file(f"{REFERENCES[key]}/{name}.yaml")
    return parse(path, shown(path))


def fill(document: Document, path: tuple[str, ...], values: dict[str, str]) -> None:
    """Add the values that follow from the file's name and folder. A key that is also written there is a problem."""
    section = document.data
    for part in path:
        section = section[part]
    for key, value in values.items():
        if key in section:
            document.report((*path, key), f"cannot be written: it follows from the file's name and folder ({value!r})")
        section[key] = value


def settle_files(document: Document, path: tuple[str, ...]) -> None:
    """Make a data set's files relative to configs/, so that a run's fingerprint is the same on every machine.

    A file that does not exist is a problem, and so is one that is set beside rows of the hub, which replace it.
    """
    data = document.data
    for part in path:
        data = data[part]
    for split in ("train", "heldout"):
        if data.get("hub") is not None and document.place((*path, split)).startswith("--set "):
            document.report((*path, split), "is replaced by the rows of data.hub: add --set data.hub=null")
        if isinstance(given := data.get(split), str):
            data[split] = str(Path(REFERENCES["data"]) / given)
            if not os.path.isfile(config_file(data[split])):
                document.report((*path, split), f"there is no file {given!r} (a relative path starts at configs/data)")


def shown(path: Path) -> str:
    """Return the path as a person would type it: relative to the project, or to what holds the configs."""
    for folder in (*(configs.parent for configs in configs_folders()), project_folder()):
        if path.is_relative_to(folder):
            return str(path.relative_to(folder))
    return str(path)
