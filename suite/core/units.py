"""Numbers with a unit: "8GiB" is bytes, "10min" is seconds."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from typing import Annotated, Any

from pydantic import BeforeValidator, PositiveFloat, PositiveInt, WithJsonSchema

GIB = 1024**3
_SIZE_UNITS = {"KiB": 1024, "MiB": 1024**2, "GiB": GIB, "KB": 1000, "MB": 1000**2, "GB": 1000**3}
_TIME_UNITS = {"s": 1, "min": 60, "h": 3600}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"


def parse_bytes(value: Any) -> Any:
    """Whole bytes from "8GiB" or "256 MiB"; what is not text comes back as it is. ValueError names the units."""
    return round(_with_unit(value, _SIZE_UNITS, "256MiB or 8GiB")) if isinstance(value, str) else value


def parse_seconds(value: Any) -> Any:
    """Seconds from "90s", "10min" or "2h"; what is not text comes back as it is. ValueError names the units."""
    return _with_unit(value, _TIME_UNITS, "90s, 10min or 2h") if isinstance(value, str) else value


def size_option(text: str) -> int:
    """Whole bytes from a command line's "8GiB". Raises ArgumentTypeError, which argparse and pytest show."""
    try:
        size_bytes = int(parse_bytes(text))
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} {error}") from None
    if size_bytes <= 0:
        raise ArgumentTypeError(f"{text!r} should be more than nothing")
    return size_bytes


def _with_unit(text: str, units: dict[str, int], example: str) -> float:
    match = re.fullmatch(rf"\s*({_NUMBER})\s*([A-Za-z]+)\s*", text)
    if match is None or match[2] not in units:
        raise ValueError(f"should be a number with a unit, such as {example} (units: {', '.join(units)})")
    return float(match[1]) * units[match[2]]


def _number_or_text(number: str, units: dict[str, int]) -> WithJsonSchema:
    text = {"type": "string", "pattern": rf"^\s*{_NUMBER}\s*({'|'.join(units)})\s*$"}
    return WithJsonSchema({"anyOf": [{"type": number, "exclusiveMinimum": 0}, text]})


Bytes = Annotated[PositiveInt, BeforeValidator(parse_bytes), _number_or_text("integer", _SIZE_UNITS)]
Seconds = Annotated[PositiveFloat, BeforeValidator(parse_seconds), _number_or_text("number", _TIME_UNITS)]


def count_option(text: str) -> int:
    """A whole number of 1 or more, for argparse. Raises ArgumentTypeError, its own word for a wrong value."""
    if not text.isdecimal() or int(text) == 0:
        raise ArgumentTypeError(f"{text!r} should be a whole number of 1 or more")
    return int(text)
