"""The false-alarm study: healthy variants that must all pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.detection.bugs.command import TINY
from benchmarks.detection.ledger import Ledger, Row
from benchmarks.detection.statistics import Margin, margins
from benchmarks.detection.trial import QUICK, try_run
from benchmarks.detection.variants import Variant

DIGITS = 4


def fill(
    ledger: Ledger,
    variants: Mapping[str, Variant],
    numbers: Iterable[str],
    *,
    real: bool,
    settings: Sequence[str],
    say: Callable[[str], None],
) -> None:
    """Each of these variants has its row in the ledger, written as soon as it is known."""
    for number in numbers:
        row = _row(variants[number], real=real, settings=settings)
        ledger.put(row)
        said = "accused: " + ", ".join([*row["failed"], *row["unjudged"]]) if row["accused"] else "passed"
        say(f"{number} {row['title']}: {row['outcome']}, {said} ({row['seconds']:.0f} s)")
    ledger.save(variants)


def _row(variant: Variant, *, real: bool, settings: Sequence[str]) -> Row:
    trial = try_run(QUICK, (*(() if real else TINY), *variant.settings, *settings))
    return {
        "id": variant.id,
        "title": variant.title,
        "outcome": trial.outcome,
        "accused": trial.accused,
        "failed": list(trial.failed),
        "unjudged": list(trial.unjudged),
        "naive": trial.naive_alarm,
        "seconds": round(trial.seconds, 1),
        "numbers": {check: [_short(m), _short(limit)] for check, (m, limit) in trial.numbers.items()},
    }


def study_margins(rows: Iterable[Row]) -> list[Margin]:
    """The margins of every limit over the variants that finished."""
    found: list[tuple[str, float, float]] = []
    for row in rows:
        found += [(check, float(measured), float(limit)) for check, (measured, limit) in row["numbers"].items()]
    return margins(found)


def alarms(rows: Sequence[Row]) -> list[Row]:
    """The rows in which something healthy was accused."""
    return [row for row in rows if row["accused"]]


def _short(value: Any) -> float:
    return float(f"{value:.{DIGITS}g}")
