"""Find nodes that are slower, larger, hotter or lower in clock than others of their kind, by median and MAD.

The rule is that of previous sessions (tunecheck.results.baseline): beyond median + max(5 x 1.4826 x MAD, the floor).
A single session says less than two in a row, so the floors are wider here, and only the speed decides anything.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tunecheck.core.finding import Domain, Finding, Status
from tunecheck.results.baseline import baseline_of, judge
from tunecheck.results.figures import FIGURES as OF_SESSIONS
from tunecheck.results.figures import Figure
from tunecheck.results.fleet.agreement import Member

FEWEST_NODES = 8
"""Of a kind: below that a median absolute deviation says little."""
SPEED = replace(OF_SESSIONS["tokens_per_second"], floor_share=0.25, sessions=1)
FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        SPEED,
        OF_SESSIONS["peak_allocated_bytes"],
        replace(OF_SESSIONS["resident_bytes"], sessions=1),
        Figure(name="temperature_celsius", title="temperature", unit="°C", floor_share=0.0, floor=10.0),
        Figure(name="sm_clock_mhz", title="SM clock", unit="MHz", lower_is_better=False, floor_share=0.10),
    )
}
"""Floors are differences between healthy nodes that shall not count. They are chosen, not measured: no fleet of GPUs
was there. That of the speed is the 10 % of previous sessions and as much again for what a node's neighbours do; that of
the temperature is for cards one behind the other in one stream of air."""


def outliers(group: Sequence[Member]) -> Iterator[tuple[Member, Figure, float, float, float]]:
    """Yield the member, the figure, its value, median and limit of each that is worse than its kind, NaN included."""
    for name, figure in FIGURES.items():
        held = [(member, member.run.figures[name]) for member in group if name in member.run.figures]
        values = [value for _, value in held if math.isfinite(value)]
        if len(values) < FEWEST_NODES:
            continue
        around = baseline_of(values, most=len(values))
        for member, value in held:
            status, last_good = judge(figure, value, around, confirmed=True)
            if status == "worse":
                yield member, figure, value, around.median, last_good


def slow(said: str, value: float, middle: float, last_good: float) -> Finding:
    """Return the finding of a place that is too slow."""
    return Finding(
        check="node_speed",
        status=Status.FAILED,
        measured=value,
        limit=last_good,
        detail=said,
        meaning="a job over several nodes waits for this one at every step",
        remedy="compare its clocks, power limit, temperature and other processes with those of a neighbour",
        domain=Domain.UNKNOWN,
        evidence="what slows it was not measured; its own page has its telemetry",
    )


def words(figure: Figure, value: float, middle: float, last_good: float) -> str:
    """Return a figure with what its kind measures: "throughput 410 tokens/s, median 2211, limit 1769"."""
    amount = figure.amount
    return f"{figure.title} {amount(value)}, median of its kind {amount(middle)}, limit {amount(last_good)}"
