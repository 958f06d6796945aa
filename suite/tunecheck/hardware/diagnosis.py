"""Diagnosis of the doctor: what was found about a topic, and what to do about it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from tunecheck.core.text import human_bytes


class Level(StrEnum):
    """Severity: a warning leaves the suite usable, an error does not."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One finding of the doctor."""

    level: Level
    topic: str
    found: str
    remedy: str = ""
    """What to do; empty where nothing is."""


ok = partial(Diagnosis, Level.OK)
"""Diagnose what needs no action."""
warning = partial(Diagnosis, Level.WARNING)
"""Diagnose what limits or distorts what the suite measures."""
error = partial(Diagnosis, Level.ERROR)
"""Diagnose what makes runs fail."""


def format_diagnoses(diagnoses: Sequence[Diagnosis]) -> str:
    """Return plain text, one line each, in columns: level, topic, finding, and after an arrow the remedy."""
    level_width = max(len(level) for level in Level)
    topic_width = max((len(diagnosis.topic) for diagnosis in diagnoses), default=0)
    return "\n".join(
        f"{diagnosis.level:<{level_width}}  {diagnosis.topic:<{topic_width}}  {diagnosis.found}"
        + (f" -> {diagnosis.remedy}" if diagnosis.remedy else "")
        for diagnosis in diagnoses
    )


def memory_size(size_bytes: int | None) -> str:
    """Return a size for a reader, such as "3.2 GiB"; "? GiB" for None."""
    return "? GiB" if size_bytes is None else human_bytes(size_bytes)
