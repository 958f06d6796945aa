"""Plain values of JSON as typed data: what a file says is of the annotated types, or it is refused where it is read."""

import dataclasses
import types
import typing
from enum import Enum
from functools import lru_cache
from typing import Any

MISFITS = (ValueError, KeyError, TypeError, AttributeError, OverflowError)
"""What `build` raises for a value of another type."""


@lru_cache
def _fields(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def build(hint: Any, value: Any, *, partial: bool = False) -> Any:
    """Build the annotated type from a JSON value: dataclasses, enums, tuples, sets, mappings, floats spelled as text.

    `partial` leaves out the keys that a dataclass does not have. Annotated[X, Y] is an X from which a Y can be built in
    part. Raises TypeError or ValueError for a value of another type, so that nothing that reads a record has to look.
    """
    if hint is Any:
        return value
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return _build_one_of(arguments, value, partial)
    if origin is typing.Annotated:
        build(arguments[1], value, partial=True)
        return build(arguments[0], value, partial=partial)
    if origin is typing.Literal:
        if value not in arguments:
            raise ValueError(f"{value!r} is none of {', '.join(map(str, arguments))}")
        return value
    if dataclasses.is_dataclass(hint):
        fields = _fields(typing.cast(type, hint))
        _require(isinstance(value, dict), value, hint)
        if (unknown := sorted(value.keys() - fields.keys())) and not partial:
            raise KeyError(f"unknown fields {unknown}")
        known = {key: build_field(key, fields[key], value[key], partial=partial) for key in value if key in fields}
        return typing.cast(type, hint)(**known)
    if origin in (tuple, frozenset):
        _require(isinstance(value, list), value, hint)
        return origin(build(arguments[0], item, partial=partial) for item in value)
    if origin is dict:
        _require(isinstance(value, dict), value, hint)
        return {key: build(arguments[1], item, partial=partial) for key, item in value.items()}
    if hint is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(_require(number or value in ("nan", "inf", "-inf"), value, hint))  # JSON has no such numbers
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    return _require(type(value) is hint, value, hint)  # of a bool, which is an int too, and of None


def build_field(name: str, hint: Any, value: Any, *, partial: bool = False) -> Any:
    """Build the annotated type likewise. Raises TypeError with this name before what is wrong."""
    try:
        return build(hint, value, partial=partial)
    except MISFITS as error:
        raise TypeError(f"{name}: {error}") from None


def _build_one_of(hints: tuple[Any, ...], value: Any, partial: bool) -> Any:
    """Build the first of these types that the value fits; None stays None where it is among them."""
    if value is None and type(None) in hints:
        return None
    problems = []
    for hint in hints:
        try:
            return build(hint, value, partial=partial)
        except (TypeError, ValueError, KeyError) as error:
            problems.append(str(error))
    raise TypeError(problems[0])


def _require(fits: bool, value: Any, hint: Any) -> Any:
    if not fits:
        raise TypeError(f"should be {getattr(hint, '__name__', hint)} (got {str(value)[:40]!r})")
    return value
