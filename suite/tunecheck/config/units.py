"""Fields of a configuration that take a number with a unit: "8GiB", "10min"."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt, WithJsonSchema

from tunecheck.core.units import NUMBER, SIZE_UNITS, TIME_UNITS, parse_bytes, parse_seconds


def _number_or_text(number: str, units: dict[str, int]) -> WithJsonSchema:
    """Return the JSON schema of a positive number or of text with one of these units."""
    text = {"type": "string", "pattern": rf"^\s*{NUMBER}\s*({'|'.join(units)})\s*$"}
    return WithJsonSchema({"anyOf": [{"type": number, "exclusiveMinimum": 0}, text]})


MOST_SECONDS = 30 * 24 * 3600
"""Thirty days: a longer time is a slip, and no timer of the system takes any number."""
Bytes = Annotated[PositiveInt, BeforeValidator(parse_bytes), _number_or_text("integer", SIZE_UNITS)]
Seconds = Annotated[
    PositiveFloat, Field(le=MOST_SECONDS), BeforeValidator(parse_seconds), _number_or_text("number", TIME_UNITS)
]
