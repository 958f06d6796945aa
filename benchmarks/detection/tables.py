"""Results as Markdown tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from benchmarks.detection.ledger import Row
from benchmarks.detection.statistics import Margin

TIERS = ("quick", "convergence", "its own settings")


def matrix_markdown(rows: Sequence[Row]) -> str:
    """The kill matrix, a fault a line: where it was caught, by what, what else failed, the naive test, seconds."""
    lines = [
        "| fault | what is broken | caught in | named by | failed too | naive test | s |",
        "|---|---|---|---|---|---|--:|",
    ]
    for row in rows:
        last = row["stages"][-1]
        others = [check for check in last["failed"] if check not in row["named_by"]]
        first = last["failed"][0] if last["failed"] else ""
        cells = (
            row["id"],
            row["title"],
            row["caught_in"] or "**survives**",
            _codes(row["named_by"]),
            _few(others, first),
            "alarm" if row["naive"] else "passes",
            f"{row['seconds']:.0f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _few(others: Sequence[str], first: str, most: int = 3) -> str:
    """Names of other failed checks, the one that failed first marked, and how many more."""
    told = [f"`{check}`{' (first)' if check == first else ''}" for check in others[:most]]
    more = f" and {len(others) - most} more" if len(others) > most else ""
    return ", ".join(told) + more


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def score_line(rows: Sequence[Row]) -> dict[str, int]:
    """Counts: all, caught in each tier, surviving, and what the naive test noticed."""
    caught = Counter(row["caught_in"] for row in rows)
    return {
        "faults": len(rows),
        **{tier: caught[tier] for tier in TIERS},
        "survive": caught[None],
        "naive": sum(row["naive"] for row in rows),
    }


def kills_markdown(rows: Sequence[Row], checks: Iterable[str]) -> str:
    """How many faults each check names, and how many it alone names, in the order of a training."""
    named = Counter(check for row in rows for check in row["named_by"])
    alone = Counter(row["named_by"][0] for row in rows if len(row["named_by"]) == 1)
    failed = Counter(check for row in rows for check in row["stages"][-1]["failed"])
    lines = ["| check | names | alone | fails with |", "|---|--:|--:|--:|"]
    lines += [f"| `{check}` | {named[check]} | {alone[check]} | {failed[check]} |" for check in checks if failed[check]]
    return "\n".join(lines) + "\n"


def margins_markdown(found: Sequence[Margin]) -> str:
    """Each limit against its healthy measurements, the nearest first; exact ones, which have no spread, last."""
    lines = [
        "| check | limit | runs | median | nearest run | spread | median is | nearest is |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for margin in sorted(found, key=lambda m: (m.nearest_spreads, m.check, m.limit)):
        distances = ("exact", "exact") if margin.exact else (_spreads(margin.spreads), _spreads(margin.nearest_spreads))
        cells = (
            f"`{margin.check}`",
            *(f"{value:.3g}" for value in (margin.limit,)),
            str(margin.runs),
            *(f"{value:.3g}" for value in (margin.middle, margin.nearest, margin.spread)),
            *distances,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _spreads(count: float) -> str:
    return f"{count:,.1f} away" if count < 100 else f"{count:,.0f} away"
