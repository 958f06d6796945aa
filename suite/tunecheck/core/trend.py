"""Trends in noisy series, robust against outliers."""

import math
from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist, median

from tunecheck.core.frozen import Frozen

MOST_POINTS = 100
"""Of a trend, whose slopes are taken over all pairs: the cost is quadratic."""


class Trend(Frozen):
    """A robust line through a series, with its interval."""

    slope: float
    """Theil-Sen: the median of the slopes of all pairs, per unit of x."""
    low: float
    high: float
    """Sen's interval around it."""
    p_rising: float
    """Mann-Kendall: chance that a series without a trend rises as consistently as this one, ties corrected for."""


def trend(xs: Sequence[float], ys: Sequence[float], *, confidence: float) -> Trend:
    """Return the trend of at least two finite points whose x increases strictly; a long series by medians of blocks.

    Sen (1968), Estimates of the regression coefficient based on Kendall's tau; Mann (1945); both take the normal
    approximation, good from about eight points on. With fewer the interval is wide and p is large.
    """
    size = -(-len(xs) // MOST_POINTS)
    xs, ys = ([median(values[at : at + size]) for at in range(0, len(values), size)] for values in (xs, ys))
    pairs = [(i, j) for i in range(len(xs)) for j in range(i + 1, len(xs))]
    slopes = sorted((ys[j] - ys[i]) / (xs[j] - xs[i]) for i, j in pairs)
    rising = sum((ys[j] > ys[i]) - (ys[j] < ys[i]) for i, j in pairs)
    width = NormalDist().inv_cdf(0.5 + confidence / 2) * math.sqrt(_variance(range(len(ys))))
    first = max(0, math.floor((len(slopes) - width) / 2))
    last = min(len(slopes) - 1, math.ceil((len(slopes) + width) / 2))
    z = (rising - 1) / math.sqrt(_variance(ys)) if rising > 0 else 0.0
    return Trend(slope=median(slopes), low=slopes[first], high=slopes[last], p_rising=0.5 * math.erfc(z / math.sqrt(2)))


def _variance(ys: Sequence[float]) -> float:
    """Return the variance of Kendall's sum without a trend: n(n-1)(2n+5)/18, less that of each group of ties."""
    whole, *ties = (n * (n - 1) * (2 * n + 5) / 18 for n in [len(ys), *Counter(ys).values()])
    return whole - sum(ties)
