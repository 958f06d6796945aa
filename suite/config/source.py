"""YAML with positions: plain data, and for every key the place where it was written."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from suite.errors import ConfigError

Path_ = tuple[str | int, ...]


@dataclass(slots=True)
class Document:
    """Parsed YAML: `data` is plain Python, `places` says where each path in it was written."""

    data: dict[str, Any]
    places: dict[Path_, str] = field(default_factory=dict)

    def place(self, path: Path_) -> str:
        """Where this path, or its nearest written parent, stands: "file:line:column" or "--set"."""
        while path not in self.places and path:
            path = path[:-1]
        return self.places.get(path, "?")

    def graft(self, key: str, other: Document) -> None:
        """Put another document in place of one top-level key, its places included."""
        self.data[key] = other.data
        self.places |= {(key, *path): place for path, place in other.places.items()}

    def set(self, path: tuple[str, ...], value: Any, place: str) -> None:
        """Set one value by its dotted path, making missing sections.

        Raises ConfigError when a parent is not a section.
        """
        target: Any = self.data
        for depth, key in enumerate(path[:-1], start=1):
            target = target.setdefault(key, {}) if isinstance(target, dict) else None
            if not isinstance(target, dict):
                raise ConfigError([f"{place}: {'.'.join(path[:depth])} is not a section, nothing can be set in it"])
        target[path[-1]] = value
        self.places = {known: at for known, at in self.places.items() if known[: len(path)] != path} | {path: place}


def parse(path: Path, shown: str) -> Document:
    """The document in this file.

    Raises ConfigError for an unreadable file, broken YAML, a duplicate key or no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError([f"{shown}: cannot be read: {reason}"]) from error
    return parse_text(text, shown)


def parse_text(text: str, shown: str) -> Document:
    """As `parse`, for text; `shown` names it in messages."""
    yaml = YAML(typ="safe", pure=True)
    try:
        node = yaml.compose(text)
        if not isinstance(node, MappingNode):
            raise ConfigError([f"{shown}:1:1: a mapping of keys to values is expected"])
        problems: list[str] = []
        places: dict[Path_, str] = {}
        _locate(node, (), shown, places, problems)
        if problems:
            raise ConfigError(problems)
        return Document(YAML(typ="safe", pure=True).load(text), places)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        at = f"{shown}:{mark.line + 1}:{mark.column + 1}" if mark else shown
        raise ConfigError([f"{at}: not valid YAML: {error.problem}"]) from error
    except YAMLError as error:
        raise ConfigError([f"{shown}: not valid YAML: {error}"]) from error


def parse_value(text: str) -> Any:
    """One YAML value, as in --set key=value. Raises ConfigError when it is not valid YAML."""
    try:
        return YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        raise ConfigError([f"--set: {text!r} is not a YAML value"]) from error


def _locate(node: Node, path: Path_, shown: str, places: dict[Path_, str], problems: list[str]) -> None:
    """Note where everything under this node stands; a key given twice is a problem."""
    if isinstance(node, MappingNode):
        first: dict[str, str] = {}
        for key, value in node.value:
            at = f"{shown}:{key.start_mark.line + 1}:{key.start_mark.column + 1}"
            name = str(key.value) if isinstance(key, ScalarNode) else "?"
            if name in first:
                problems.append(f"{at}: {name} is given twice, first at {first[name]}: keep one of them")
            first[name] = at
            places[(*path, name)] = at
            _locate(value, (*path, name), shown, places, problems)
    elif isinstance(node, SequenceNode):
        for index, item in enumerate(node.value):
            places[(*path, index)] = f"{shown}:{item.start_mark.line + 1}:{item.start_mark.column + 1}"
            _locate(item, (*path, index), shown, places, problems)
