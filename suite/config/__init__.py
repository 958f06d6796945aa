"""Load runs: YAML to typed, frozen `Run` objects, every problem named with its place."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from suite.checks import CHECKS, problem_with
from suite.config.schema import Data, Model, Run
from suite.config.source import Document, Path_, parse, parse_value
from suite.errors import ConfigError
from suite.paths import configs_folder

S = TypeVar("S", bound=BaseModel)

TIERS = {
    "quick": "ten steps: everything that fine-tuning rests on, before every commit",
    "convergence": "100 steps: the adapters learn, the checkpoint resumes, a fresh process agrees",
    "memory": "4-bit really saves memory and stays under its ceiling",
    "extended": "500 steps: stable, no leak, steady throughput",
    "full": "LLaMA-7B, 1000 steps of instruction tuning",
}
"""Tier to what it proves: pytest's markers, the folders under configs/ and the files under tiers/."""


def run_files(tier: str | None = None) -> list[Path]:
    """The YAML files of one tier's runs, or of all tiers, in the tiers' order."""
    return [path for name in TIERS if tier in (None, name) for path in sorted((configs_folder() / name).glob("*.yaml"))]


def load_runs(tier: str, overrides: Sequence[str] = ()) -> list[Run]:
    """All runs of a tier. Raises ConfigError with the problems of all its files."""
    runs, problems = [], []
    for path in run_files(tier):
        try:
            runs.append(load_run(path, overrides))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return runs


def find_run(name: str) -> Path:
    """The file of the run with this id ("quick/smollm2-135m-qlora" or its last part).

    Raises ConfigError, with the nearest.
    """
    known = {f"{path.parent.name}/{path.stem}": path for path in run_files()}
    matches = [path for key, path in known.items() if name in (key, path.stem)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ConfigError([f"{name!r} is in several tiers: {', '.join(k for k, p in known.items() if p in matches)}"])
    raise ConfigError([f"no run is called {name!r}{_nearest(name, list(known))}; known runs: {', '.join(known)}"])


def load_run(path: Path, overrides: Sequence[str] = ()) -> Run:
    """The run in this file with the overrides ("a.b=c") applied.

    Raises ConfigError naming every problem and its place.
    """
    document = parse(path, _shown(path))
    _graft_reference(document, "model", "models")
    _graft_reference(document, "data", "data")
    document.data |= {"id": path.stem, "tier": path.parent.name}
    for override in overrides:
        _apply(document, override)
    return _validated(Run, document)


def with_limits(limits: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A trace's limits with overrides ("checks.loss_falls.min_fall=0.2") applied. Raises ConfigError."""
    document = Document({"checks": json.loads(json.dumps(limits))})
    for override in overrides:
        if not override.startswith("checks."):
            raise ConfigError([f"--set {override}: a trace is what happened; only checks.* can be set when judging it"])
        _apply(document, override)
    changed: dict[str, Any] = document.data["checks"]
    problems = [problem for name in changed for problem in _limit_problems(name, changed[name], document)]
    if problems:
        raise ConfigError(problems)
    return changed


def load_model(name: str) -> Model:
    """The model described in configs/models/NAME.yaml. Raises ConfigError."""
    return _validated(Model, _referenced("models", name, "argument"))


def load_data(name: str) -> Data:
    """The data set described in configs/data/NAME.yaml. Raises ConfigError."""
    return _validated(Data, _referenced("data", name, "argument"))


def json_schema() -> str:
    """The JSON Schema of a run's YAML for editors, as text: model and data are names there."""
    schema = Run.model_json_schema()
    for key in ("id", "tier"):
        schema["properties"].pop(key)
        schema["required"].remove(key)
    for key, folder in (("model", "models"), ("data", "data")):
        described = schema["properties"][key].get("description", "")
        names = sorted(path.stem for path in (configs_folder() / folder).glob("*.yaml"))
        schema["properties"][key] = {"description": described, "enum": names}
    limits = {name: {"anyOf": [TypeAdapter(check).json_schema(), {"const": "off"}]} for name, check in CHECKS.items()}
    schema["properties"]["checks"] = {"type": "object", "additionalProperties": False, "properties": limits}
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


def _graft_reference(document: Document, key: str, folder: str) -> None:
    """Put the file that `key` names in its place; the one level of reference there is."""
    value = document.data.get(key)
    if isinstance(value, str):
        document.graft(key, _referenced(folder, value, document.place((key,))))


def _referenced(folder: str, name: str, place: str) -> Document:
    path = configs_folder() / folder / f"{name}.yaml"
    if not path.is_file():
        known = sorted(file.stem for file in path.parent.glob("*.yaml"))
        raise ConfigError(
            [f"{place}: configs/{folder} has no {name!r}{_nearest(name, known)}; known: {', '.join(known)}"]
        )
    document = parse(path, _shown(path))
    document.data["name"] = name
    if folder == "data":
        for split in ("train", "heldout"):
            if isinstance(document.data.get(split), str):
                document.data[split] = str(Path(folder) / document.data[split])
    return document


def _apply(document: Document, override: str) -> None:
    key, separator, text = override.partition("=")
    path = tuple(key.split("."))
    if not separator or not all(path):
        raise ConfigError([f"--set {override}: write it as section.key=value"])
    document.set(path, parse_value(text), f"--set {override}")


def _validated(schema: type[S], document: Document) -> S:
    try:
        config = schema.model_validate(document.data)
        if isinstance(config, Run):
            _validate_checks(config, document)
        return config
    except ValidationError as error:
        raise ConfigError([_problem(schema, document, detail) for detail in error.errors()]) from None


def _validate_checks(run: Run, document: Document) -> None:
    problems = [problem for name, limits in run.checks.items() for problem in _limit_problems(name, limits, document)]
    for name in run.checks:
        if problem := problem_with(name, run.features):
            problems.append(f"{document.place(('checks', name))}: {problem}")
    if problems:
        raise ConfigError(problems)


def _limit_problems(name: str, limits: Any, document: Document) -> list[str]:
    """What is wrong with the limits of one check; a name that is no check is somebody else's matter."""
    if name not in CHECKS or limits == "off":
        return []
    try:
        # through JSON: strict types, and yet a mapping may stand for a dataclass
        TypeAdapter(CHECKS[name]).validate_json(json.dumps(limits or {}))
    except ValidationError as error:
        paths = [("checks", name, *detail["loc"]) for detail in error.errors()]
        return [
            f"{document.place(path)}: {'.'.join(map(str, path))}: {_rule(detail)}"
            for path, detail in zip(paths, error.errors(), strict=True)
        ]
    return []


def _problem(schema: type[BaseModel], document: Document, detail: Any) -> str:
    """One of pydantic's errors as place, dotted path, rule, and for an unknown key the nearest known one."""
    path: Path_ = tuple(part for part in detail["loc"] if not _is_tag(part, detail))
    dotted = ".".join(str(part) for part in path) or schema.__name__.lower()
    message = f"{document.place(path)}: {dotted}: {_rule(detail)}"
    if detail["type"] == "extra_forbidden":
        known = _known_keys(schema, path[:-1])
        message += f"{_nearest(str(path[-1]), known)}; known keys: {', '.join(known)}"
    return message


def _is_tag(part: str | int, detail: Any) -> bool:
    """Pydantic puts the tag of a discriminated union into the path; the file has no such level."""
    return part in ("local", "hub", "package", "random") and "sources" in detail["loc"]


def _rule(detail: Any) -> str:
    given = "" if detail["type"] in ("missing", "extra_forbidden") else f" (got {_short(detail['input'])})"
    text = {"missing": "is missing", "extra_forbidden": "unknown key"}.get(detail["type"], detail["msg"])
    return str(text).removeprefix("Value error, ") + (given if not str(text).startswith("Value error") else "")


def _short(value: Any) -> str:
    return repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."


def _known_keys(schema: type[BaseModel], path: Path_) -> list[str]:
    """The keys allowed at this path, found by walking the field annotations."""
    current: Any = schema
    for part in path:
        if isinstance(part, int):
            continue
        field = current.model_fields.get(part) if isinstance(current, type) and issubclass(current, BaseModel) else None
        current = _model_in(field.annotation) if field is not None else None
    return sorted(current.model_fields) if isinstance(current, type) and issubclass(current, BaseModel) else []


def _model_in(annotation: Any) -> Any:
    """The pydantic model in an annotation such as `Lora | None`; None when there is none or several."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    models = [inner for part in getattr(annotation, "__args__", ()) if (inner := _model_in(part)) is not None]
    return models[0] if len(models) == 1 else None


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _shown(path: Path) -> str:
    """The path as a person would type it: relative to the project where it lies inside."""
    try:
        return str(path.relative_to(configs_folder().parent))
    except ValueError:
        return str(path)
