"""Diagnosis of the doctor: what was found about a topic, and what to do about it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from tunecheck.core.text import human_bytes


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One finding of the doctor."""

    level: Literal["ok", "warning", "error"]
    """Severity: a warning leaves the suite usable, an error does not."""
    topic: str
    found: str
    remedy: str = ""
    """What to do; empty where nothing is."""


ok = partial(Diagnosis, "ok")
"""Diagnose what needs no action."""
warning = partial(Diagnosis, "warning")
"""Diagnose what limits or distorts what the suite measures."""
error = partial(Diagnosis, "error")
"""Diagnose what makes runs fail."""


def format_diagnoses(diagnoses: Sequence[Diagnosis]) -> str:
    """Return plain text, one line each, in columns: level, topic, finding, and after an arrow the remedy."""
    topic_width = max((len(diagnosis.topic) for diagnosis in diagnoses), default=0)
    return "\n".join(
        f"{diagnosis.level:<7}  {diagnosis.topic:<{topic_width}}  {diagnosis.found}"
        + (f" -> {diagnosis.remedy}" if diagnosis.remedy else "")
        for diagnosis in diagnoses
    )


def memory_size(size_bytes: int | None) -> str:
    """Return a size for a reader, such as "3.2 GiB"; "? GiB" for None."""
    return "? GiB" if size_bytes is None else human_bytes(size_bytes)
