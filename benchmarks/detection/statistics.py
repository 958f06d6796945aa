"""What a count of false positives proves, and how far healthy measurements stay from a limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

CONFIDENCE = 0.95
NEAR_SPREADS = 3.0
"""A limit nearer than this to a healthy run is listed."""
MAD_TO_SIGMA, MEAN_DEVIATION_TO_SIGMA = 1.4826, 1.2533
"""Of a normal distribution; the second is for series of which more than half are equal (Iglewicz and Hoaglin 1993)."""


def clopper_pearson(flagged: int, runs: int) -> tuple[float, float]:
    """Return the two-sided 95 % interval of a rate (Clopper and Pearson 1934), one-sided for none or all.

    With none in n runs the upper end is 1 - 0.05^(1/n), close to the rule of three's 3/n. Raises ValueError
    for no runs at all.
    """
    if not 0 <= flagged <= runs or runs == 0:
        raise ValueError(f"{flagged} of {runs} runs is not a rate")
    tail = (1 - CONFIDENCE) / (1 if flagged in (0, runs) else 2)
    low = 0.0 if flagged == 0 else _root(lambda p: 1 - _at_most(flagged - 1, runs, p) - tail)
    high = 1.0 if flagged == runs else _root(lambda p: tail - _at_most(flagged, runs, p))
    return low, high


def _at_most(count: int, runs: int, p: float) -> float:
    """Return the probability of at most this many successes."""
    return sum(math.comb(runs, k) * p**k * (1 - p) ** (runs - k) for k in range(count + 1))


def _root(rising: Callable[[float], float]) -> float:
    """Return the root in [0, 1] by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """One limit and the healthy measurements that were compared with it."""

    check: str
    limit: float
    runs: int
    middle: float
    """Median."""
    spread: float
    """Robust standard deviation; 0 where every run measured the same."""
    nearest: float
    """The healthy measurement nearest to the limit, or furthest beyond it."""

    @property
    def exact(self) -> bool:
        """Whether all runs measured the same: an invariant, which has no spread to count in."""
        return self.spread == 0

    @property
    def spreads(self) -> float:
        """Distance from the median to the limit in spreads."""
        return math.inf if self.exact else abs(self.limit - self.middle) / self.spread

    @property
    def nearest_spreads(self) -> float:
        """Distance from the nearest healthy run to the limit in spreads; negative beyond it."""
        return math.inf if self.exact else _short_of(self.limit, self.middle, self.nearest) / self.spread

    @property
    def near(self) -> bool:
        """Whether the limit needs to be widened with a reason, or replaced by an invariant."""
        return self.nearest_spreads < NEAR_SPREADS


def margins(measurements: Iterable[tuple[str, float, float]]) -> list[Margin]:
    """Return a margin for each check and limit among these (check, measured, limit).

    Left out are limits that are the value itself, a count that must be met, and those of 0, which ask whether there is
    anything at all.
    """
    series: dict[tuple[str, float], list[float]] = {}
    for check, measured, limit in measurements:
        if math.isfinite(measured) and math.isfinite(limit) and limit != 0:
            series.setdefault((check, limit), []).append(measured)
    return [_margin(check, limit, values) for (check, limit), values in series.items() if set(values) != {limit}]


def _margin(check: str, limit: float, values: Sequence[float]) -> Margin:
    middle = median(values)
    return Margin(
        check=check,
        limit=limit,
        runs=len(values),
        middle=middle,
        spread=robust_spread(values),
        nearest=min(values, key=lambda value: _short_of(limit, middle, value)),
    )


def _short_of(limit: float, middle: float, value: float) -> float:
    """Return the distance from the value to the limit on the side where most are; negative beyond it."""
    return limit - value if middle <= limit else value - limit


def robust_spread(values: Sequence[float]) -> float:
    """Return the standard deviation by the median absolute deviation, by the mean one where most are equal."""
    middle = median(values)
    deviations = [abs(value - middle) for value in values]
    return MAD_TO_SIGMA * median(deviations) or MEAN_DEVIATION_TO_SIGMA * fmean(deviations)
