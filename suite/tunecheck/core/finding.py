"""A finding: what one check concluded about one trace."""

import math
from enum import StrEnum
from pathlib import Path
from typing import Literal

from tunecheck.core.frozen import Frozen
from tunecheck.core.text import beside_limit


class Status(StrEnum):
    """The answers of a check."""

    PASSED = "passed"
    FAILED = "failed"
    SUSPECTED = "suspected"  # Outside of its limit, in a way that some trainings mean.
    IGNORED = "ignored"  # Failed or suspected, and the user says why that is meant.
    UNJUDGED = "unjudged"


class Domain(StrEnum):
    """What a failure is attributed to."""

    WORKLOAD = "workload"  # Model, data, trainer or libraries.
    HARDWARE = "hardware"
    ENVIRONMENT = "environment"  # Other processes on the GPU or the CPU, heat, power.
    UNKNOWN = "unknown"


class Place(Frozen):
    """A line of a user's own code."""

    what: str
    """What it is to the training: compute_loss, data_collator, a callback's name, script."""
    file: str
    line: int
    quoted: str = ""
    """The line itself; "" where its source is unknown."""

    def __str__(self) -> str:
        """Format it as editors and terminals open it, the file relative to the present folder where it is below it."""
        shown = path.relative_to(Path.cwd()) if (path := Path(self.file)).is_relative_to(Path.cwd()) else path
        return f"{self.what} at {shown}:{self.line}" + (f": {self.quoted}" if self.quoted else "")


class Finding(Frozen):
    """One answer with the numbers a person needs to disagree."""

    check: str
    status: Status
    measured: bool | int | float | str | None = None  # as it was measured: a whole number keeps its digits
    limit: bool | int | float | str | None = None
    margin: float | None = None
    """(measured - limit) / |limit|, for readers of a file; None for texts, infinities, NaN and a limit of 0."""
    detail: str = ""
    """What was measured, in words; for an unjudged finding the reason."""
    rule: str = ""
    """The rule that the check holds the training to, for a failed or suspected finding."""
    meaning: str = ""
    remedy: str = ""
    domain: Domain | Literal[""] = ""
    """Of a failed finding, see suite/tunecheck/results/domain.py; else empty."""
    meant: str = ""
    """Why some trainings do this on purpose; for an ignored finding the user's reason."""
    evidence: str = ""
    places: tuple[Place, ...] = ()
    """Of a failed finding about a watched script: its code that takes part in what the check is about."""
    because: str = ""
    """The failed check that explains this failure; "" where none does."""
    expected: bool = False
    """Whether an unjudged finding follows from the configuration (random weights, say), not from lost evidence."""

    def __post_init__(self) -> None:
        """Take the margin from its neighbours, whatever was given for it."""
        measured, limit, margin = self.measured, self.limit, math.nan
        if isinstance(measured, int | float) and isinstance(limit, int | float) and math.isfinite(limit) and limit:
            margin = (measured - limit) / abs(limit)
        object.__setattr__(self, "margin", margin if math.isfinite(margin) else None)

    @property
    def passed(self) -> bool:
        return self.status is Status.PASSED

    def __str__(self) -> str:
        """Format the finding as one to three lines for a terminal."""
        numbers = "" if self.measured is None else f" measured {beside_limit(self.measured, self.limit)}."
        lines = [f"{self.check} {self.status}:{numbers} {self.detail}".rstrip()]
        if self.status in (Status.FAILED, Status.SUSPECTED):
            lines += [f"  usually means: {self.meaning}", f"  what to do: {self.remedy}"]
        return "\n".join(lines)
