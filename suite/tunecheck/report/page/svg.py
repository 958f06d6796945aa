"""Charts as SVG, a few hundred bytes each beside their points. Colours and fonts are the page's style sheet's."""

import math
from collections.abc import Sequence
from itertools import pairwise

from markupsafe import Markup, escape

from tunecheck.core.text import printable
from tunecheck.report.page.chart import Chart, Point, Series, figure, thinned

WIDTH, HEIGHT = 480, 220
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 10, 36
"""Margins for the numbers and names of the axes, in the drawing's units."""
HEADROOM = 0.05
"""Margin above and below the curves, as a share of the values' span."""
FLAT = 1e-4
"""A smaller span, as a share of the highest value, is drawn as a level line: its numbers would not fit at the axis."""
TICKS = 5


class _Scale:
    """A linear scale from values to positions in the drawing."""

    def __init__(self, low: float, high: float, start: float, stop: float) -> None:
        self.low, self.high = low, high
        self._start, self._factor = start, (stop - start) / ((high - low) or 1)

    def __call__(self, value: float) -> str:
        """Return the position in whole units: the drawing is finer than most screens."""
        return f"{self._start + (value - self.low) * self._factor:.0f}"


def svg(chart: Chart, most_points: int) -> Markup:
    """Return the chart as an inline image with title and description. Longer curves are thinned to `most_points`."""
    xs, ys = _scales(chart)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        escape_into("<title>{}</title>", chart.title),
        escape_into("<desc>{}</desc>", chart.words()),
        *_grid(chart, xs, ys),
        *(part for place, series in enumerate(chart.series) for part in _curve(series, place, xs, ys, most_points)),
        *(f'<path class="limit" d="M{LEFT} {ys(limit.value)}H{WIDTH - RIGHT}"/>' for limit in chart.limits),
        "</svg>",
    ]
    return Markup("".join(parts))


def legend(chart: Chart) -> Markup:
    """Return the names of curves and limits as list items, whose line the style sheet draws by their class."""
    entries = [(f"s{place}", series.name) for place, series in enumerate(chart.series)]
    entries += [("limit", f"{limit.name} {figure(limit.value)}") for limit in chart.limits]
    return Markup("").join(escape_into('<li class="{}">{}', kind, name) for kind, name in entries)


def escape_into(pattern: str, *values: str) -> Markup:
    """Return the pattern with these texts in it, escaped and without control characters."""
    return Markup(pattern).format(*(escape(printable(value)) for value in values))


def ticks(low: float, high: float, most: int = TICKS, *, whole: bool = False) -> list[float]:
    """Return round numbers from low to high: multiples of 1, 2 or 5 times a power of ten, at most one more than `most`.

    No fractions where they would mean nothing: `whole`.
    """
    raw = (high - low) / most
    if not raw > 0 or not math.isfinite(raw):
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


def _scales(chart: Chart) -> tuple[_Scale, _Scale]:
    xs = [x for series in chart.series for x, _ in series.points]
    ys = [y for _, y in chart.finite] + [limit.value for limit in chart.limits]
    low, high = (min(ys), max(ys)) if ys else (0.0, 1.0)
    span = high - low if high - low > FLAT * abs(high) else abs(high)
    room = span * HEADROOM or 1.0
    bottom = max(0.0, low - room) if low >= 0 else low - room
    return _Scale(min(xs), max(xs), LEFT, WIDTH - RIGHT), _Scale(bottom, high + room, HEIGHT - BOTTOM, TOP)


def _grid(chart: Chart, xs: _Scale, ys: _Scale) -> list[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    marks = ticks(ys.low, ys.high)
    lines = "".join(f"M{LEFT} {ys(mark)}H{right}" for mark in marks)
    parts = [f'<path class="grid" d="{lines}"/><path class="axis" d="M{LEFT} {bottom}H{right}"/>']
    heights = "".join(f'<text x="{LEFT - 6}" y="{ys(y)}">{words}</text>' for y, words in labelled(marks))
    counted = all(float(x).is_integer() for series in chart.series for x, _ in series.points)
    along = ticks(xs.low, xs.high, whole=counted)
    places = "".join(f'<text x="{xs(x)}" y="{bottom + 15}">{words}</text>' for x, words in labelled(along))
    parts += [f'<g class="y">{heights}</g>', places]
    middle = (LEFT + right) / 2
    return [*parts, escape_into(f'<text x="{middle:.0f}" y="{HEIGHT - 3}">{{}}</text>', chart.x_name)]


def _curve(series: Series, place: int, xs: _Scale, ys: _Scale, most_points: int) -> list[str]:
    points = list(series.points) if series.steps else thinned(series.points, most_points)
    broken = [x for x, y in points if not math.isfinite(y)]
    parts = [f'<path class="s{place}" d="{_path(points, series.steps, xs, ys)}"/>']
    alone = points if len(points) <= 12 and not series.steps else []
    dots = "".join(f"M{xs(x)} {ys(y)}h0" for x, y in alone if math.isfinite(y))
    parts += [f'<path class="s{place} dot" d="{dots}"/>'] if dots else []
    if broken:
        marks = "".join(f"M{xs(x)} {TOP}V{HEIGHT - BOTTOM}" for x in broken)
        parts.append(f'<path class="broken" d="{marks}"/>')
    return parts


def _path(points: Sequence[Point], bars: bool, xs: _Scale, ys: _Scale) -> str:
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
