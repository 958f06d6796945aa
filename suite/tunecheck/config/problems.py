"""Problems in words for a person: place, dotted path, rule and the way out, of pydantic's errors and of checks."""

import dataclasses
import json
import re
from collections.abc import Collection, Iterable
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError

from tunecheck.checks import CHECKS, problem_with
from tunecheck.config.source import Document, KeyPath
from tunecheck.core.errors import ConfigError
from tunecheck.core.spelling import nearest

S = TypeVar("S", bound=BaseModel)
SECTION, LIST = "should be a section, that is a mapping of keys to values", "should be a list, such as [a, b]"
WORDS = {
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), SECTION),
    **dict.fromkeys(("list_type", "tuple_type"), LIST),
}
"""Replacements for messages of pydantic that do not help somebody who writes YAML."""


def validated(schema: type[S], document: Document) -> S | None:
    """Return the document as this type; None, with every problem that pydantic found added, for one that is not."""
    try:
        return schema.model_validate(document.data)
    except ValidationError as error:
        for detail in error.errors():
            document.report(*_explain(schema, detail))
    return None


def loaded(schema: type[S], document: Document) -> S:
    """Return the document as this type. Raises ConfigError with its problems and those of the schema."""
    if (section := validated(schema, document)) is None or document.problems:
        raise ConfigError(document.problems)
    return section


def report_limits(document: Document, above: tuple[str, ...] = ()) -> None:
    """Report every problem of the sections `checks` and `ignore`, below this one, that does not depend on the run."""
    for section in ("checks", "ignore"):
        given = document.section(above).get(section)
        for name, value in given.items() if isinstance(given, dict) else ():
            path = (*above, section, str(name))
            if name not in CHECKS:
                document.report(path, str(problem_with(str(name), ())))
            elif section == "ignore":
                if isinstance(value, str) and not value.strip():
                    document.report(path, 'lacks a reason, such as "too few steps to tell"')
            elif isinstance(value, dict):
                _report_fields(name, value, document)
            elif value != "off":
                rule = f"should be a section with its limits, {{}} for its defaults, or off (got {value!r})"
                document.report(path, rule)


def report_unanswerable(document: Document, features: Collection[str]) -> None:
    """Report every check that does not apply to a run with these features."""
    for name in document.data.get("checks", ()):
        if name in CHECKS and (problem := problem_with(name, features)):
            document.report(("checks", name), problem)


def _rule_of(detail: Any) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in ("missing", "union_tag_not_found"):
        return "is missing"
    rule, given = WORDS.get(kind) or re.sub("^(Input|String|List|Value error,) ", "", detail["msg"]), detail["input"]
    known = context.get("expected", "")
    if kind == "union_tag_invalid":
        given, known = context["tag"], context["expected_tags"]
        rule = f"should be one of {known}"
    hint = nearest(str(given), re.findall(r"'([^']*)'", str(known)))
    words = repr(given) if len(repr(given)) <= 60 else f"{repr(given)[:57]}..."
    return rule if "(got " in rule else f"{rule} (got {words}){hint}"


def _explain(schema: type[BaseModel], detail: Any) -> tuple[KeyPath, str]:
    """Return path and rule of one of pydantic's errors. For an unknown key the rule lists the known ones."""
    path, section = _walk(schema, detail["loc"])
    if detail["type"] == "extra_forbidden":
        known = sorted(section.model_fields.keys() - getattr(section, "from_path", ()))
        return path, f"unknown key{nearest(path[-1], known)}; known keys: {', '.join(known)}"
    if detail["type"].startswith("union_tag"):
        path = (*path, "kind")
    return path, _rule_of(detail)


def _walk(schema: type[BaseModel], location: Iterable[str | int]) -> tuple[KeyPath, type[BaseModel]]:
    """Return the path as written in the file, and the section that holds its last key."""
    path: list[str] = []
    models, holder = [schema], schema
    for part in location:  # which has one level more: in a list of tagged unions, the tag follows the index
        kinds = [(model, model.model_fields.get("kind")) for model in models if len(models) > 1]
        if tagged := [model for model, kind in kinds if kind and part in get_args(kind.annotation)]:
            models = tagged
            continue
        path.append(str(part))
        if isinstance(part, str) and models:
            holder = models[0]
            field = holder.model_fields.get(part)
            models = _models_in(field.annotation) if field is not None else []
    return tuple(path), holder


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


def _report_fields(name: str, limits: dict[str, Any], document: Document) -> None:
    fields = sorted(field.name for field in dataclasses.fields(CHECKS[name]))
    try:
        # Through JSON: validation is as strict as in Python, yet accepts a mapping for a dataclass.
        TypeAdapter(CHECKS[name]).validate_json(json.dumps(limits, default=str, skipkeys=True))
    except ValidationError as error:
        for detail in error.errors():
            unknown = detail["type"] == "unexpected_keyword_argument"
            path = ("checks", name, *map(str, detail["loc"]))  # without a place in it for text that is no JSON
            hint = nearest(path[-1], fields)
            rule = f"unknown limit{hint}; known limits: {', '.join(fields) or 'none'}" if unknown else _rule_of(detail)
            document.report(path, f"{rule}; off leaves the check out" if detail["type"] == "finite_number" else rule)
