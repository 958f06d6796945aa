"""How a figure stands against the nights before: median and scatter, with floors, and a direction for each figure.

Worse means beyond median + max(5 x 1.4826 x MAD, the figure's floors), with at least 8 nights. (1.4826 makes the median
absolute deviation a standard deviation of normal scatter.) Speed and resident memory must be worse two nights in a row.
The throughputs of 21 real sessions on a shared machine, drawn at random 20,000 times, accuse a healthy night in 0.9 %
of the cases with 8 nights before it and in 0.2 % with 20; normal scatter of 5 % in 0.05 % and in fewer than 0.01 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from suite.results.figures import Figure

FEWEST_NIGHTS = 8
"""Below that a median absolute deviation says little."""
MOST_NIGHTS = 30
"""What lies further back no longer counts: a changed machine becomes the usual one in time. A baseline that shall not
move is accepted into a file."""
SPREADS = 5.0
MAD_TO_DEVIATION = 1.4826

Status = Literal["steady", "better", "suspect", "worse", "no baseline"]
"""suspect: worse than usual for the first time, where it takes two nights in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """What a figure usually is."""

    median: float
    deviation: float
    """Median absolute deviation, not scaled."""
    nights: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One figure of one run against its baseline."""

    run: str
    figure: str
    value: float
    status: Status
    nights: int
    """In the baseline, or so far where there is none."""
    median: float | None = None
    limit: float | None = None
    """Beyond it the figure is worse; None without a baseline."""
    previous: float | None = None
    """Of the night before; None where there was none."""
    baseline: str = ""
    """The file it was accepted into; empty for the nights before."""
    changed: str = ""
    """Versions and commit in which a worse night differs from the one before."""


def usual(values: Sequence[float]) -> Usual:
    """Median and scatter of the last MOST_NIGHTS of these values, the oldest first; at least one."""
    last = values[-MOST_NIGHTS:]
    middle = median(last)
    return Usual(median=middle, deviation=median([abs(value - middle) for value in last]), nights=len(last))


def limit(figure: Figure, known: Usual) -> float:
    """The last value that is not worse than usual."""
    room = max(SPREADS * MAD_TO_DEVIATION * known.deviation, floor(figure, known.median))
    # Of a rate the reciprocal is judged, the time for one: noise adds time, and no scatter allows a rate of nothing.
    return known.median + room if figure.lower_is_better else known.median / (1 + room / known.median)


def floor(figure: Figure, middle: float) -> float:
    """The largest change from this value that is none."""
    return max(figure.floor_share * abs(middle), figure.floor)


def stand(
    run: str,
    figure: Figure,
    value: float,
    before: Sequence[float],
    *,
    accepted: Usual | None = None,
    baseline: str = "",
) -> Standing:
    """The standing of this value after the nights `before`, the oldest first; an accepted baseline goes before them."""
    finite = [held for held in before if math.isfinite(held)]
    known = accepted or (usual(finite) if finite else None)
    previous = before[-1] if before else None
    if known is None or (accepted is None and known.nights < FEWEST_NIGHTS):
        nights = known.nights if known else 0
        return Standing(
            run=run, figure=figure.name, value=value, status="no baseline", nights=nights, previous=previous
        )
    certain = figure.nights == 1 or _was_worse(figure, finite, accepted)
    status, last_good = status_against(figure, value, known, certain=certain)
    return Standing(
        run=run,
        figure=figure.name,
        value=value,
        status=status,
        nights=known.nights,
        median=known.median,
        limit=last_good,
        previous=previous,
        baseline=baseline,
    )


def status_against(figure: Figure, value: float, known: Usual, *, certain: bool) -> tuple[Status, float]:
    """The status of this value against what is usual, and its limit; worse only if `certain`, else suspect."""
    last_good = limit(figure, known)
    if not (value <= last_good if figure.lower_is_better else value >= last_good):  # so that NaN is worse
        return "worse" if certain or not math.isfinite(value) else "suspect", last_good
    better = value < 2 * known.median - last_good if figure.lower_is_better else value > known.median**2 / last_good
    return "better" if better else "steady", last_good


def worse(standings: Iterable[Standing]) -> list[Standing]:
    """Those that are regressions."""
    return [standing for standing in standings if standing.status == "worse"]


def _was_worse(figure: Figure, before: Sequence[float], accepted: Usual | None) -> bool:
    """Whether the last of these nights was itself beyond the limit that it was held against."""
    earlier = before[:-1]
    if not before or (accepted is None and len(earlier) < FEWEST_NIGHTS):
        return False
    status, _ = status_against(figure, before[-1], accepted or usual(earlier), certain=True)
    return status == "worse"
