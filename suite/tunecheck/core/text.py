"""Format numbers, and text of foreign origin, for every output."""

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

LONGEST_STEM = 150
"""A file's name has 255 bytes at most, and a device and endings are added."""
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
# C0 and C1 controls but tab and newline, marks that reorder text, and what XML 1.0 and UTF-8 do not allow.
_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def human_bytes(count: float | None) -> str:
    """Format a size in binary units: "512 B", "1.43 GiB", "1000 MiB"; empty for None."""
    if count is None:
        return ""
    size, unit = float(count), _BYTE_UNITS[0]
    for unit in _BYTE_UNITS:
        if abs(size) < 1023.5 or unit == _BYTE_UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or abs(size) >= 99.95 else f"{size:.3g} {unit}"


def human_seconds(seconds: float) -> str:
    """Format a duration: "0.4 s", "12 s", "3 min 05 s", "2 h 07 min"."""
    if not math.isfinite(seconds):
        return f"{seconds} s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if (whole := round(seconds)) < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02} min"


def human_number(value: float | str | None) -> str:
    """Format a measured value or a limit: six digits of a float, text as it is, "-" for none."""
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def beside_limit(measured: float | str | None, limit: float | str | None) -> str:
    """Format a measured value and its limit, with as many digits as tell them apart: "4.59754, limit 3.2408"."""
    shown = [human_number(measured), human_number(limit)]
    if measured != limit and shown[0] == shown[1]:
        shown = [f"{value:.17g}" if isinstance(value, float) else human_number(value) for value in (measured, limit)]
    return f"{shown[0]}, limit {shown[1]}"


def counted(count: int, noun: str) -> str:
    """Format a number with its noun: "1 run", "2 runs"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def bare_uuid(uuid: str) -> str:
    """Return the digits of a GPU's UUID: CUDA gives a MIG instance's without its kind."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-")


def file_stem(name: str) -> str:
    """Return the name of a run as the stem of a file name, with a digest in place of what is too long for one."""
    if len(words := name.replace("/", "-")) <= LONGEST_STEM:
        return words
    return f"{words[: LONGEST_STEM - 13]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def printable(text: str) -> str:
    """Return the text without escape sequences and control characters, safe in a terminal, Markdown and XML."""
    return _UNPRINTABLE.sub("", ESCAPE_SEQUENCE.sub("", text))


def one_line(text: str, limit: int = 1000) -> str:
    """Return the text as one printable line of at most `limit` characters, with an ellipsis where it was cut."""
    return line if len(line := " ".join(printable(text).split())) <= limit else line[: limit - 1] + "…"


def facts(environment: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the leaves of a nested mapping as dotted names and text, in order, without those that are None or empty."""
    for key, value in environment.items():
        if isinstance(value, Mapping):
            yield from facts(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple):
            yield from facts({str(place): item for place, item in enumerate(value)}, f"{prefix}{key}.")
        elif value is not None and value != "":
            yield f"{prefix}{key}", str(value)
