"""A chart as plain data: curves and limits, as a description in words, and as table rows."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from tunecheck.core.frozen import Frozen

Point = tuple[float, float]

MOST_ROWS = 20
"""Of a chart's table."""


class Series(Frozen):
    """One curve; values that are not finite break it and are marked."""

    name: str
    points: tuple[Point, ...]
    steps: bool = False
    """Pairs of points, each a bar from its start to its end, instead of one line through all of them."""


class Limit(Frozen):
    """A horizontal line at a check's limit."""

    name: str
    value: float


class Chart(Frozen):
    """Curves over a common x; at least one of them has a point."""

    title: str
    x_name: str
    unit: str
    """Of y."""
    series: tuple[Series, ...]
    limits: tuple[Limit, ...] = ()
    note: str = ""
    """Explanation below the chart; may be empty."""
    of_sessions: bool = False
    """Whether its points are those of many sessions, so that no single trace has them."""

    @property
    def finite(self) -> list[Point]:
        """Points with a finite value."""
        return [point for series in self.series for point in series.points if math.isfinite(point[1])]

    def words(self) -> str:
        """Return the chart in words: first, last, lowest and highest value of each curve."""
        parts = [f"{series.name}: {_course(series.points)}" for series in self.series]
        parts += [f"{limit.name}: {figure(limit.value)}" for limit in self.limits]
        return f"{self.unit} over {self.x_name}. {'. '.join(parts)}."

    def rows(self, most: int = MOST_ROWS) -> list[tuple[str, ...]]:
        """Return table rows: x, then a cell for each curve; of many points some, both ends included."""
        columns = [dict(series.points) for series in self.series]
        xs = sorted({x for column in columns for x in column})
        if len(xs) > most:
            xs = [xs[round(place * (len(xs) - 1) / (most - 1))] for place in range(most)]
        return [(figure(x), *(figure(column[x]) if x in column else "" for column in columns)) for x in xs]

    def shortened(self, most: int = MOST_ROWS) -> bool:
        """Return whether the table leaves points out."""
        return len({x for series in self.series for x, _ in series.points}) > most


def figure(value: float) -> str:
    """Format a number in four digits, without an exponent where that is short: an axis has room for eight."""
    if not math.isfinite(value):
        return str(value)
    if value == round(value) and abs(value) < 1e6:
        return f"{value:.0f}"
    if abs(value) < 0.001 or abs(value) >= 1e7:
        digits, _, exponent = f"{value:.3e}".partition("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most so many points: the extremes of each stretch, and what is not finite. A mean would hide spikes."""
    if len(points) <= most:
        return list(points)
    stretches = most // 2
    edges = [round(stretch * len(points) / stretches) for stretch in range(stretches + 1)]
    return [point for start, stop in pairwise(edges) for point in _extremes(points[start:stop])]


def _extremes(points: Sequence[Point]) -> Iterator[Point]:
    finite = [at for at, (_, y) in enumerate(points) if math.isfinite(y)]
    broken = {at for at, (_, y) in enumerate(points) if not math.isfinite(y)}
    lowest = min(finite, key=lambda at: points[at][1], default=None)
    highest = max(finite, key=lambda at: points[at][1], default=None)
    kept = {at for at in (lowest, highest) if at is not None} | set(sorted(broken)[:1])
    yield from (points[at] for at in sorted(kept))


def _course(points: Sequence[Point]) -> str:
    finite = [y for _, y in points if math.isfinite(y)]
    if not finite:
        return f"{len(points)} values, none finite"
    words = f"{len(points)} values, first {figure(points[0][1])}, last {figure(points[-1][1])}"
    words += f", lowest {figure(min(finite))}, highest {figure(max(finite))}"
    broken = len(points) - len(finite)
    return f"{words}, {broken} not finite" if broken else words
