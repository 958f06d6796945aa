"""A chart: curves and limits as plain data, in words, as table rows, and the places that chart.html.jinja draws."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from itertools import pairwise

from tunecheck.core.frozen import Frozen

Point = tuple[float, float]

MOST_ROWS = 20
"""Of a chart's table."""
WIDTH, HEIGHT = 480, 220
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 10, 36
"""Margins for the numbers and names of the axes, in the drawing's units."""

FLAT = 1e-4
"""A smaller span, as a share of the highest value, is drawn as a level line: its numbers would not fit at the axis."""


class Series(Frozen):
    """One curve; values that are not finite break it and are marked."""

    name: str
    points: tuple[Point, ...]
    steps: bool = False
    """Pairs of points, each a bar from its start to its end, instead of one line through all of them."""


class Chart(Frozen):
    """Curves over a common x; at least one of them has a point."""

    title: str
    x_name: str
    unit: str
    """Of y."""
    series: tuple[Series, ...]
    limits: Mapping[str, float] = field(default_factory=dict)
    """Horizontal lines by name, each at a check's limit."""
    note: str = ""
    of_sessions: bool = False
    """Whether its points are those of many sessions, so that no single trace has them."""

    def words(self) -> str:
        """Return the chart in words: first, last, lowest and highest value of each curve."""
        parts = [f"{series.name}: {_course(series.points)}" for series in self.series]
        parts += [f"{name}: {figure(value)}" for name, value in self.limits.items()]
        return f"{self.unit} over {self.x_name}. {'. '.join(parts)}."

    def rows(self, most: int = MOST_ROWS) -> list[tuple[str, ...]]:
        """Return table rows: x, then a cell for each curve; of many points some, both ends included."""
        columns = [dict(series.points) for series in self.series]
        if len(xs := sorted({x for column in columns for x in column})) > most:
            xs = [xs[round(place * (len(xs) - 1) / (most - 1))] for place in range(most)]
        return [(figure(x), *(figure(column[x]) if x in column else "" for column in columns)) for x in xs]

    def scales(self) -> "tuple[Scale, Scale]":
        """Return the scales of x and y: every curve and limit lies within them."""
        points = [point for series in self.series for point in series.points]
        xs = [x for x, _ in points]
        ys = [*(y for _, y in filter(finite, points)), *self.limits.values()]
        low, high = (min(ys), max(ys)) if ys else (0.0, 1.0)
        span = high - low if high - low > FLAT * abs(high) else abs(high)
        room = 0.05 * span or 1.0  # above and below the curves
        bottom = max(0.0, low - room) if low >= 0 else low - room
        across = Scale(min(xs), max(xs), LEFT, WIDTH - RIGHT, whole=all(float(x).is_integer() for x in xs))
        return across, Scale(bottom, high + room, HEIGHT - BOTTOM, TOP)

    def shortened(self, most: int = MOST_ROWS) -> bool:
        return len({x for series in self.series for x, _ in series.points}) > most


def finite(point: Point) -> bool:
    return math.isfinite(point[1])


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
    whole = [at for at, point in enumerate(points) if finite(point)]
    broken = [at for at, point in enumerate(points) if not finite(point)]
    ends = {choose(whole, key=lambda at: points[at][1]) for choose in (min, max)} if whole else set()
    yield from (points[at] for at in sorted(ends | set(broken[:1])))


def _course(points: Sequence[Point]) -> str:
    if not (finite := [y for _, y in points if math.isfinite(y)]):
        return f"{len(points)} values, none finite"
    words = f"{len(points)} values, first {figure(points[0][1])}, last {figure(points[-1][1])}"
    words += f", lowest {figure(min(finite))}, highest {figure(max(finite))}"
    return f"{words}, {broken} not finite" if (broken := len(points) - len(finite)) else words


class Scale:
    """A linear scale from values to positions in the drawing."""

    def __init__(self, low: float, high: float, start: int, stop: int, *, whole: bool = False) -> None:
        self.start, self.stop, self.marks = start, stop, labelled(ticks(low, high, whole=whole))
        self._low, self._factor = low, (stop - start) / ((high - low) or 1)

    def __call__(self, value: float) -> str:
        """Return the position in whole units: the drawing is finer than most screens."""
        return f"{self.start + (value - self._low) * self._factor:.0f}"


def ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Return at most six round numbers from low to high: 1, 2 or 5 times a power of ten; no fractions where `whole`."""
    if not (raw := (high - low) / 5) > 0 or not math.isfinite(raw):
        return [low]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((power * factor for factor in (1, 2, 5) if power * factor >= raw), power * 10)
    step = max(step, 1.0) if whole else step
    first, last = math.ceil(low / step), math.floor(high / step)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def labelled(marks: Sequence[float]) -> list[tuple[float, str]]:
    """Return the ticks of an axis with their labels: in one notation, with all digits in which they differ."""
    largest = max((abs(mark) for mark in marks), default=0.0)
    return [(mark, f"{mark:.9g}" if 1e-3 <= largest < 1e6 else figure(mark)) for mark in marks]


def path(points: Sequence[Point], bars: bool, xs: Scale, ys: Scale) -> str:
    """Return a line through the finite points, interrupted at each other one; for bars, a bar for each pair."""
    if bars:
        return "".join(f"M{xs(x)} {ys(y)}H{xs(end)}" for (x, y), (end, _) in list(pairwise(points))[::2])
    drawn: list[str] = []
    pen: tuple[int, int] | None = None
    for x, y in points:
        if not math.isfinite(y):
            pen = None
            continue
        place = (int(xs(x)), int(ys(y)))
        # Steps from point to point are half as long to write as places.
        drawn.append(f"l{place[0] - pen[0]} {place[1] - pen[1]}" if pen else f"M{place[0]} {place[1]}")
        pen = place
    return "".join(drawn)
