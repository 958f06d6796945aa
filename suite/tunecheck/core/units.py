"""Numbers with a unit, as configurations and command lines write them: "8GiB" is bytes, "10min" is seconds."""

import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import Any

GIB = 1024**3
SIZE_UNITS = {"KiB": 1024, "MiB": 1024**2, "GiB": GIB, "KB": 1000, "MB": 1000**2, "GB": 1000**3}
TIME_UNITS = {"s": 1, "min": 60, "h": 3600}
MOST = 2.0**60
"""Bytes or seconds: beyond, numbers no longer fit those of the system, and hundreds of digits no float."""
NUMBER = r"[0-9]+(?:\.[0-9]+)?"


def parse_bytes(value: Any) -> Any:
    """Parse "8GiB" or "256 MiB" to whole bytes; return what is not text unchanged. Raises ValueError."""
    return round(_with_unit(value, SIZE_UNITS, "256MiB or 8GiB")) if isinstance(value, str) else value


def parse_seconds(value: Any) -> Any:
    """Parse "90s", "10min" or "2h" to seconds; return what is not text unchanged. Raises ValueError."""
    return _with_unit(value, TIME_UNITS, "90s, 10min or 2h") if isinstance(value, str) else value


def size_option(text: str) -> int:
    """Parse a command line's "8GiB" to bytes. Raises ArgumentTypeError, which argparse and pytest show."""
    return int(_above_nothing(text, parse_bytes))


def seconds_option(text: str) -> float:
    """Parse a command line's "10min" to seconds. Raises ArgumentTypeError."""
    return _above_nothing(text, parse_seconds)


def _above_nothing(text: str, parse: Callable[[str], Any]) -> float:
    try:
        number = float(parse(text))
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} {error}") from None
    if number <= 0:
        raise ArgumentTypeError(f"{text!r} should be above 0")
    return number


def count_option(text: str) -> int:
    """Parse a command line's whole number of 1 or more. Raises ArgumentTypeError."""
    if not re.fullmatch("0*[1-9][0-9]{0,8}", text):
        raise ArgumentTypeError(f"{text[:40]!r} should be a whole number of 1 or more, and of at most nine digits")
    return int(text)


def _with_unit(text: str, units: dict[str, int], example: str) -> float:
    if (match := re.fullmatch(rf"\s*({NUMBER})\s*([A-Za-z]+)\s*", text)) is None or match[2] not in units:
        raise ValueError(f"should be a number with a unit, such as {example} (units: {', '.join(units)})")
    if (number := float(match[1]) * units[match[2]]) >= MOST:
        raise ValueError(f"is more than any machine has: at most {MOST:.2g} are taken")
    return number
