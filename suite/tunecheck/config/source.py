"""YAML with positions: plain data, the place of every key, and the problems found so far."""

import os
import re
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from operator import getitem
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from tunecheck.core.errors import ConfigError
from tunecheck.core.files import YAML_BYTES, read_text
from tunecheck.core.paths import config_file, config_files, configs_folders, project_folder
from tunecheck.core.spelling import nearest

KeyPath = tuple[str, ...]
"""Keys, and places in lists as text, from a document's top to a value."""
MOST_DEPTH, MOST_VALUES = 40, 20_000
"""Of one YAML; the deepest key of a run stands in the fifth level, and a run has some hundred values."""
_STANDARD = "tag:yaml.org,2002:"
_PLAIN = ("map", "seq", "str", "int", "float", "bool", "null", "merge")
"""Standard tags of what a configuration holds: the others make sets, bytes and dates, which no key takes."""
_HALVES = re.compile("[\ud800-\udfff]")
_TOO_DEEP = f"nested more than {MOST_DEPTH} levels deep"
UNREADABLE = (YAMLError, ValueError)
"""Errors of broken YAML. ValueError: a number that Python cannot hold, or what is nested too deeply."""
REFERENCES = {"model": "models", "data": "data"}
"""Key of a run to the folder under configs/ whose files it may name."""


@dataclass(slots=True)
class Document:
    """Parsed YAML. Problems are collected, so that one message can list them all."""

    data: dict[str, Any] = field(default_factory=dict)
    places: dict[KeyPath, str] = field(default_factory=dict)
    """Path of a key or list item to its place: "file:line:column", or the --set that wrote it."""
    problems: list[str] = field(default_factory=list)
    _reported: set[KeyPath] = field(default_factory=set)

    def place(self, path: KeyPath) -> str:
        """Return the place of this path, or of its nearest written parent."""
        while path not in self.places:
            path = path[:-1]
        return self.places[path]

    def section(self, path: KeyPath) -> dict[str, Any]:
        return reduce(getitem, path, self.data)

    def report(self, path: KeyPath, rule: str) -> None:
        """Add a problem, unless this path or a parent has one already: what follows from it is noise."""
        if not self.is_reported(path):
            self._reported.add(path)
            self.problems.append(": ".join(filter(None, (self.place(path), ".".join(path), rule))))

    def is_reported(self, path: KeyPath) -> bool:
        return any(path[:length] in self._reported for length in range(len(path) + 1))

    def graft(self, key: str, other: "Document") -> None:
        """Replace one top-level key by another document, its places and problems included."""
        self.data[key] = other.data
        self.places |= {(key, *path): place for path, place in other.places.items()}
        self.problems += other.problems
        self._reported |= {(key, *path) for path in other._reported}

    def set(self, path: KeyPath, value: Any, place: str) -> None:
        """Set one value by its dotted path, creating missing sections. A parent that is no section is a problem."""
        if self.is_reported(path):
            return
        target = self.data
        for depth, key in enumerate(path[:-1], start=1):
            if key not in target:
                target[key] = {}
                self.places[path[:depth]] = place
            if not isinstance(target := target[key], dict):
                self.problems.append(f"{place}: {'.'.join(path[:depth])} is not a section, nothing can be set in it")
                return
        target[path[-1]] = value
        self.places = {known: at for known, at in self.places.items() if known[: len(path)] != path} | {path: place}


def leaves(path: KeyPath, value: Any) -> list[tuple[KeyPath, Any]]:
    """Return the path of every value below this one that is not a section, with the value."""
    if not isinstance(value, dict):
        return [(path, value)]
    return [leaf for key, inner in value.items() for leaf in leaves((*path, str(key)), inner)]


def parse(path: Path, shown: str) -> Document:
    """Parse this file, called `shown` in messages. An unreadable file and duplicate keys are its problems."""
    try:
        return deepcopy(_parsed(read_text(path, YAML_BYTES), shown))
    except (OSError, UnicodeDecodeError) as error:
        return _unusable(shown, f"cannot be read: {getattr(error, 'strerror', error)}")


@lru_cache(maxsize=64)
def _parsed(text: str, shown: str) -> Document:
    """Parse this text, once: seven runs share three models."""
    try:
        yaml, node = _composed(text)
        if not isinstance(node, MappingNode):
            return _unusable(f"{shown}:1:1", "a mapping of keys to values is expected")
        document = Document(places={(): _at(node, shown)})
        _locate(node, (), shown, document)
        if not document.is_reported(()):
            document.data = yaml.constructor.construct_document(node)
        return document
    except UNREADABLE as error:
        mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
        at = f"{shown}:{mark.line + 1}:{mark.column + 1}" if mark else shown
        return _unusable(at, f"not valid YAML: {_reason(error)}")


def parse_value(text: str) -> Any:
    """Parse one YAML value, as in --set key=value. Raises ConfigError when it is not valid YAML."""
    document = Document(places={(): "value"})
    try:
        yaml, node = _composed(text)
        if node is None:
            return None
        _locate(node, (), "value", document)
        if not document.problems:
            return yaml.constructor.construct_document(node)
    except UNREADABLE as error:
        document.problems = [_reason(error)]
    raise ConfigError([f"{text!r} is not a YAML value: {'; '.join(document.problems)}"])


def _composed(text: str) -> tuple[YAML, Node | None]:
    """Return the parser and the text's node. Raises one of UNREADABLE."""
    if len(text) > YAML_BYTES:
        raise ValueError(f"has {len(text):,} characters; at most {YAML_BYTES:,} are read")
    yaml = YAML(typ="safe", pure=True)
    yaml.allow_duplicate_keys = True  # reported here, together with all other problems, instead of raised
    try:
        return yaml, yaml.compose(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def _no_plain_value(node: Node) -> str:
    """Return why JSON has no such value; empty where it has. A date becomes the text that it is written as."""
    if node.tag == f"{_STANDARD}timestamp":
        node.tag = f"{_STANDARD}str"
    if (tag := str(node.tag).removeprefix(_STANDARD)) not in _PLAIN:
        return f"tag !!{tag.lstrip('!')}: write only sections, lists, texts, numbers, true, false and null"
    half = _HALVES.search(node.value) if isinstance(node, ScalarNode) else None
    return f"{half[0]!a} is half of a surrogate pair: write the whole character" if half else ""


def _unusable(place: str, rule: str) -> Document:
    document = Document(places={(): place})
    document.report((), rule)
    return document


def _locate(node: Node, path: KeyPath, shown: str, document: Document, parents: tuple[Node, ...] = ()) -> None:
    """Record the place of everything under this node; a key given twice is a problem.

    Raises one of UNREADABLE for more levels or values than a configuration has, each counted as often as aliases repeat
    it, and for a value that JSON does not have: a set, bytes, half of a surrogate pair.
    """
    document.places.setdefault(path, _at(node, shown))
    if len(parents) == MOST_DEPTH:
        raise ValueError(_TOO_DEEP)
    if len(document.places) > MOST_VALUES:
        raise ValueError(f"aliases expand it to too many values; at most {MOST_VALUES:,} are read")
    if problem := _no_plain_value(node):
        raise MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    if any(node is parent for parent in parents):
        document.report((), f"{'.'.join(path)} is an alias of a section that contains it")
    elif isinstance(node, MappingNode):
        for key, value in node.value:
            inner = (*path, str(key.value) if isinstance(key, ScalarNode) else "?")
            first, document.places[inner] = document.places.get(inner), _at(key, shown)
            if first is not None:
                document.report(inner, f"given twice, first at {first}: keep one of them")
            _locate(key, (*inner, "?"), shown, document, (*parents, node))
            _locate(value, inner, shown, document, (*parents, node))
    elif isinstance(node, SequenceNode):
        for index, item in enumerate(node.value):
            _locate(item, (*path, str(index)), shown, document, (*parents, node))


def _reason(error: Exception) -> str:
    return str(error.problem if isinstance(error, MarkedYAMLError) else error).partition("\n")[0]


def _at(node: Node, shown: str) -> str:
    return f"{shown}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def known_names(folder: str) -> list[str]:
    return [path.stem for path in config_files(folder)]


def described(folder: str, name: Any) -> Document:
    """Return the document of this name in this folder under configs/. Raises ConfigError where there is none."""
    if name not in (known := known_names(folder)):
        hint = nearest(name, known) if isinstance(name, str) else ""
        raise ConfigError([f"configs/{folder} has no {name!r}{hint}; known: {', '.join(known)}"])
    path = config_file(f"{folder}/{name}.yaml")
    return parse(path, shown(path))


def fill(document: Document, path: KeyPath, values: dict[str, str]) -> None:
    """Add the values that follow from the file's name and folder. A key that is also written there is a problem."""
    section = document.section(path)
    for key, value in values.items():
        if key in section:
            document.report((*path, key), f"cannot be written: it follows from the file's name and folder ({value!r})")
        section[key] = value


def settle_files(document: Document, path: KeyPath) -> None:
    """Make a data set's files relative to configs/, so that a run's fingerprint is the same on every machine."""
    data = document.section(path)
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
