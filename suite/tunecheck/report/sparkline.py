"""A curve as a few block characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

LEVELS = "▁▂▃▄▅▆▇█"
BROKEN = "!"
"""Character of a value that is NaN or infinite."""


def sparkline(values: Sequence[float], cells: int = 20) -> str:
    """Return at most `cells` characters, the lowest value lowest; a constant curve is flat at half height.

    Longer curves are averaged cell by cell. A cell with a single non-finite value shows it: averages hide nothing.
    """
    means = [_mean(bucket) for bucket in _buckets(_scaled(values), cells)]
    finite = [mean for mean in means if mean is not None]
    if not finite:
        return BROKEN * len(means)
    low, span = min(finite), max(finite) - min(finite)
    return "".join(BROKEN if mean is None else _level(mean - low, span) for mean in means)


def _scaled(values: Sequence[float]) -> list[float]:
    """Divide the values by the largest of them, so that sums of huge losses do not overflow."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    return [value / largest for value in values] if largest else list(values)


def _buckets(values: Sequence[float], cells: int) -> list[Sequence[float]]:
    cells = min(cells, len(values))
    edges = [round(cell * len(values) / cells) for cell in range(cells + 1)] if cells else [0]
    return [values[start:stop] for start, stop in pairwise(edges)]


def _mean(bucket: Sequence[float]) -> float | None:
    return fmean(bucket) if all(map(math.isfinite, bucket)) else None


def _level(height: float, span: float) -> str:
    if span == 0:
        return LEVELS[len(LEVELS) // 2 - 1]
    return LEVELS[min(int(height / span * len(LEVELS)), len(LEVELS) - 1)]
