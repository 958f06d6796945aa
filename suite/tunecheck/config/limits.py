"""Validation of the section `checks` against the fields of each check."""

import dataclasses
import json
import math
from collections.abc import Collection
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tunecheck.checks import CHECKS, problem_with
from tunecheck.config.problems import rule_of
from tunecheck.config.source import Document
from tunecheck.core.spelling import nearest


def report_limits(document: Document) -> None:
    """Report every problem of the sections `checks` and `ignore` that does not depend on the run."""
    for section in ("checks", "ignore"):
        given = document.data.get(section)
        for name, value in given.items() if isinstance(given, dict) else ():
            path = (section, str(name))
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


def _report_fields(name: str, limits: dict[str, Any], document: Document) -> None:
    fields = sorted(field.name for field in dataclasses.fields(CHECKS[name]))
    try:
        # Through JSON: validation is as strict as in Python, yet accepts a mapping for a dataclass.
        TypeAdapter(CHECKS[name]).validate_json(json.dumps(limits, default=str, skipkeys=True))
    except ValidationError as error:
        for detail in error.errors():
            unknown = detail["type"] == "unexpected_keyword_argument"
            path = ("checks", name, *detail["loc"])  # without a place in it for text that is no JSON
            hint = nearest(str(path[-1]), fields)
            rule = f"unknown limit{hint}; known limits: {', '.join(fields) or 'none'}" if unknown else rule_of(detail)
            document.report(path, rule)
    for key, limit in limits.items():
        if isinstance(limit, float) and not math.isfinite(limit):
            rule = f"should be a finite number (got {limit}); off leaves the check out"
            document.report(("checks", name, str(key)), rule)
