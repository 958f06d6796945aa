"""The study of false positives: healthy variants, all of which must pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from benchmarks.detection.ledger import Ledger, Row
from benchmarks.detection.statistics import Margin, margins
from benchmarks.detection.trial import QUICK, Setup, try_run
from benchmarks.detection.variants import Variant

DIGITS = 4


def fill(
    ledger: Ledger, variants: Mapping[str, Variant], ids: Iterable[str], setup: Setup, *, say: Callable[[str], None]
) -> None:
    """Train these variants, writing each row to the ledger as soon as it is known."""
    for id in ids:
        row = _row(variants[id], setup)
        ledger.put(row)
        verdict = "flagged: " + ", ".join([*row["failed"], *row["unjudged"]]) if row["flagged"] else "passed"
        say(f"{id} {row['title']}: {row['outcome']}, {verdict} ({row['seconds']:.0f} s)")
    ledger.save(variants)


def _row(variant: Variant, setup: Setup) -> Row:
    trial = try_run(QUICK, setup, variant.settings)
    return {
        "id": variant.id,
        "title": variant.title,
        "outcome": trial.outcome,
        "flagged": trial.flagged,
        "failed": list(trial.failed),
        "unjudged": list(trial.unjudged),
        "smoke_test_failed": trial.smoke_test_failed,
        "seconds": round(trial.seconds, 1),
        "numbers": {check: [_short(m), _short(limit)] for check, (m, limit) in trial.numbers.items()},
    }


def study_margins(rows: Iterable[Row]) -> list[Margin]:
    """Return the margin of every limit over the variants that finished."""
    found: list[tuple[str, float, float]] = []
    for row in rows:
        found += [(check, float(measured), float(limit)) for check, (measured, limit) in row["numbers"].items()]
    return margins(found)


def false_positives(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of healthy runs that were flagged."""
    return [row for row in rows if row["flagged"]]


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
