"""A finding: what one check concluded about one trace."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """The three answers a check can give."""

    PASSED = "passed"
    FAILED = "failed"
    UNJUDGED = "unjudged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One answer with the numbers a person needs to disagree."""

    check: str
    status: Status
    measured: float | str | None = None
    limit: float | str | None = None
    detail: str = ""
    """What was seen, in words; for an unjudged finding the reason."""
    meaning: str = ""
    """What a failure of this check usually means."""
    remedy: str = ""
    """What to do about it."""
    domain: str = ""
    """For a failed finding: workload, hardware, environment or unknown; see suite/judging/domain.py."""
    evidence: str = ""
    """What speaks for that domain."""
    expected: bool = False
    """An unjudged finding that follows from what the run asked for (random weights, say), not from missing evidence."""

    @property
    def passed(self) -> bool:
        """True only when it was judged, and judged good."""
        return self.status is Status.PASSED

    def __str__(self) -> str:
        """One to three lines for a terminal."""
        numbers = "" if self.measured is None else f" measured {_show(self.measured)}, limit {_show(self.limit)}."
        lines = [f"{self.check} {self.status}:{numbers} {self.detail}".rstrip()]
        if self.status is Status.FAILED:
            lines += [f"  usually means: {self.meaning}", f"  what to do: {self.remedy}"]
        return "\n".join(lines)


def _show(value: float | str | None) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
