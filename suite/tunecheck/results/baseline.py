"""The figures of a run, and each compared with its baseline: median and scatter of previous sessions, with floors.

There is one rule, `judge`, for previous sessions, an accepted baseline and two sessions side by side. A figure is worse
beyond median + max(5 x 1.4826 x MAD, the figure's floors), with at least 8 sessions. (1.4826 makes the median absolute
deviation a standard deviation of normal scatter.) Speed and resident memory must be worse in two sessions in a row.

The throughputs of 21 real sessions on a shared machine, drawn at random 20,000 times, flag a healthy session in 0.9 %
of the cases with 8 sessions before it and in 0.2 % with 20; normal scatter of 5 % in 0.05 % and in fewer than 0.01 %.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any, Literal

from tunecheck.core.frozen import Frozen
from tunecheck.core.text import human_bytes

MIB = 2**20
FEWEST_SESSIONS = 8
"""Below that a median absolute deviation says little."""
MOST_SESSIONS = 30
"""Older sessions do not count: a changed machine becomes the baseline in time, but for one accepted into a file."""

Status = Literal["steady", "better", "suspect", "worse", "no baseline"]
"""suspect: worse for the first time, where it takes two sessions in a row."""


class Figure(Frozen):
    """One figure."""

    name: str
    title: str
    unit: Literal["bytes", "nats", "tokens/s", "°C", "MHz"]
    lower_is_better: bool = True
    floor_share: float
    """Smallest change that counts, as a share of the median."""
    floor: float = 0.0
    """Smallest change that counts, in the figure's own unit."""
    sessions: int = 1
    """Sessions in a row that must be worse: two where the figure depends on other processes."""

    def amount(self, value: float | None) -> str:
        """Return the value with its unit; empty for none."""
        if value is None:
            return ""
        return human_bytes(value) if self.unit == "bytes" and math.isfinite(value) else f"{value:.4g} {self.unit}"


def by_name(*figures: Figure) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures}


_RATE: dict[str, Any] = {"unit": "tokens/s", "lower_is_better": False}
FIGURES = by_name(
    Figure(name="tokens_per_second", title="throughput", **_RATE, floor_share=0.10, sessions=2),
    Figure(name="peak_allocated_bytes", title="allocator peak", unit="bytes", floor_share=0.01, floor=2 * MIB),
    Figure(name="live_tensor_bytes", title="live tensors", unit="bytes", floor_share=0.01, floor=MIB),
    Figure(name="resident_bytes", title="resident memory", unit="bytes", floor_share=0.20, floor=64 * MIB, sessions=2),
    Figure(name="probe_loss", title="probe loss", unit="nats", floor_share=0.02),
    Figure(name="heldout_loss", title="held-out loss", unit="nats", floor_share=0.02),
    Figure(name="training_loss", title="training loss", unit="nats", floor_share=0.05, sessions=2),
)
"""Live tensors and losses repeat to the byte and to the last digits on one machine, and the allocator's peak should;
their floors are for another patch release's roundings. Resident memory of one and the same run lay between 868 and 1166
MiB and its throughput between 53 and 118 tokens/s in 21 sessions of `quick` on a shared 2-core machine."""


def change(before: float, after: float) -> float | None:
    """Return (after - before) / |before|; None where that is no number."""
    if before == 0 or not (math.isfinite(before) and math.isfinite(after)):
        return None
    return (after - before) / abs(before)


class FigureBaseline(Frozen):
    """Median and scatter of a figure."""

    median: float
    deviation: float
    """Median absolute deviation, not scaled."""
    sessions: int


class FigureComparison(Frozen):
    """One figure of one run against its baseline."""

    run: str
    figure: str
    value: float
    status: Status
    sessions: int
    """In the baseline, or so far where there is none."""
    median: float | None = None
    limit: float | None = None
    """Beyond it the figure is worse; None without a baseline."""
    previous: float | None = None
    baseline: str = ""
    """File of an accepted baseline; empty for previous sessions."""
    changed: str = ""
    """Versions and commit that differ from the session before, where the figure is worse."""


def baseline_of(values: Sequence[float], most: int = MOST_SESSIONS) -> FigureBaseline:
    """Return median and scatter of the last of these values, the oldest first; at least one."""
    last = values[-most:]
    middle = median(last)
    return FigureBaseline(median=middle, deviation=median([abs(value - middle) for value in last]), sessions=len(last))


def limit(figure: Figure, baseline: FigureBaseline) -> float:
    """Return the last value that is not worse than the baseline."""
    room = max(5 * 1.4826 * baseline.deviation, figure.floor_share * abs(baseline.median), figure.floor)
    # Of a rate the reciprocal is judged, the time for one: noise adds time, and no scatter allows a rate of nothing.
    if figure.lower_is_better:
        return baseline.median + room
    return baseline.median / (1 + room / baseline.median) if baseline.median else 0.0


def judge(figure: Figure, value: float, baseline: FigureBaseline, *, confirmed: bool) -> tuple[Status, float]:
    """Return the status of this value and its limit: worse only if `confirmed` by another session, else suspect."""
    last_good = limit(figure, baseline)
    if not (value <= last_good if figure.lower_is_better else value >= last_good):  # so that NaN is worse
        return "worse" if confirmed or not math.isfinite(value) else "suspect", last_good
    middle = baseline.median
    better = value < 2 * middle - last_good if figure.lower_is_better else value * last_good > middle**2
    return "better" if better else "steady", last_good


def compare_to_baseline(
    run: str,
    figure: Figure,
    value: float,
    before: Sequence[float],
    *,
    accepted: FigureBaseline | None = None,
    baseline: str = "",
) -> FigureComparison:
    """Compare this value with an accepted baseline, else with the values of previous sessions, the oldest first."""
    finite = [held for held in before if math.isfinite(held)]
    known = accepted or (baseline_of(finite) if finite else None)
    previous = before[-1] if before else None
    sessions = known.sessions if known else 0
    alone = FigureComparison(
        run=run, figure=figure.name, value=value, status="no baseline", sessions=sessions, previous=previous
    )
    if known is None or (accepted is None and sessions < FEWEST_SESSIONS):
        return alone
    confirmed, earlier = figure.sessions == 1, finite[:-1]
    if not confirmed and finite and (accepted or len(earlier) >= FEWEST_SESSIONS):  # by the session before
        confirmed = judge(figure, finite[-1], accepted or baseline_of(earlier), confirmed=True)[0] == "worse"
    status, last_good = judge(figure, value, known, confirmed=confirmed)
    return replace(alone, status=status, median=known.median, limit=last_good, baseline=baseline)


def compare_pair(figure: Figure, before: float, after: float, history: Sequence[float]) -> tuple[Status, float]:
    """Compare two values, with the scatter of previous sessions where there are enough; return status and limit."""
    scatter = baseline_of(history).deviation if len(history) >= FEWEST_SESSIONS else None
    around = FigureBaseline(median=before, deviation=scatter or 0.0, sessions=len(history))
    return judge(figure, after, around, confirmed=scatter is not None or figure.sessions == 1)
