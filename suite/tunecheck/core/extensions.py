"""Checks and probes of other packages, found by their entry points. Standard library only."""

from collections.abc import Iterable
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from tunecheck.core.errors import ConfigError

EXTENSION_CHECKS, EXTENSION_PROBES = "tunecheck.checks", "tunecheck.probes"
"""Groups of entry points. A name is the subject of its checks, with - for spaces; a value is a class, or several."""


@cache
def extensions(group: str) -> tuple[tuple[str, type[Any]], ...]:
    """Return the classes of this group with their entry points' names. Raises ConfigError for one that is broken."""
    found: list[tuple[str, type[Any]]] = []
    for entry in sorted(entry_points(group=group), key=lambda entry: (entry.name, entry.value)):
        try:
            offered = entry.load()
        except Exception as error:
            package = entry.dist.name if entry.dist is not None else entry.value
            told = f"{package}: its entry point {entry.value} in {group} cannot be loaded"
            raise ConfigError([f"{told}: {error}; fix or uninstall it"]) from error
        classes: Iterable[type[Any]] = (offered,) if isinstance(offered, type) else offered
        found += [(entry.name.replace("-", " "), each) for each in classes]
    return tuple(found)
