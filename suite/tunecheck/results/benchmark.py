"""Trainers side by side: the same training by each of them, several times in turns.

Rates and peaks are medians over the turns. Ratios are taken within a turn, between trainings that follow each other on
the same machine, so that what slows the whole machine for a while cancels.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from tunecheck.core.check import grouped
from tunecheck.core.evidence import AttemptOutcome
from tunecheck.core.frozen import Frozen
from tunecheck.core.text import human_bytes
from tunecheck.results import RunReport
from tunecheck.results.comparison import SideBySide, trained


class Contender(Frozen):
    """What one trainer's turns come to; None where they did not come so far."""

    trainer: str
    verdict: str
    failed: tuple[str, ...]
    """Checks that failed in any of them."""
    turns: int
    tokens_per_second: float | None
    """Median over the turns of a turn's median step."""
    rate_ratio: float | None
    """To the first trainer's in the same turn, median over the turns."""
    peak_bytes: int | None
    """Median over the turns."""
    peak_kind: str
    peak_ratio: float | None
    loss_difference: float | None
    """Largest difference of any step's loss from that of the first trainer's first turn, relative to it; of turns that
    trained to their end."""
    repeats: bool
    """Whether the losses of all its turns are equal to the last bit."""


HEADS = ("trainer", "verdict", "tokens/s", "ratio", "peak", "ratio", "loss differs by", "turns")


def benchmarks(runs: Iterable[RunReport]) -> list[SideBySide]:
    """Return each benchmark of which at least one turn trained, in the order of the report, with each first turn."""
    return [
        SideBySide(
            title=f"trainers of {name} on {model}",
            ranking=f"medians over the turns; ratios and losses against {contenders[0].trainer}, within a turn",
            named_by="trainer",
            heads=HEADS,
            rows=tuple(map(_cells, contenders)),
            notes=tuple(_notes(contenders, [run for of_trainer in turns for run in of_trainer])),
            runs=tuple(of_trainer[0] for of_trainer in turns),
        )
        for name, model, contenders, turns in _compared(runs)
    ]


def plain_benchmarks(runs: Iterable[RunReport]) -> list[dict[str, Any]]:
    """Return the same as plain data."""
    return [
        {"name": name, "model": model, "trainers": [asdict(one) for one in contenders]}
        for name, model, contenders, _ in _compared(runs)
    ]


def _compared(runs: Iterable[RunReport]) -> Iterator[tuple[str, str, list[Contender], list[list[RunReport]]]]:
    """Yield the name and model of each benchmark, its trainers in the order of the first turn, and each one's turns."""
    for (name, model), group in trained(run for run in runs if run.entry and run.entry.turn):
        in_turns = sorted(group, key=_turn)  # stable: in a turn the order in which they began
        turns = grouped((run.entry.name, run) for run in in_turns if run.entry)
        first = next(iter(turns.values()))
        yield name, model, [_contender(trainer, own, first) for trainer, own in turns.items()], [*turns.values()]


def _notes(contenders: Sequence[Contender], runs: Sequence[RunReport]) -> Iterator[str]:
    """Yield a sentence for each trainer whose numbers need one, and one where the machine was not its own."""
    yield from (f"{one.trainer}: failed {', '.join(one.failed)}" for one in contenders if one.failed)
    for one in contenders:
        if not one.repeats:
            yield f"{one.trainer}: its losses are not the same in every turn, so that none of them can be repeated"
    if busy := [run.others_busy_share or 0.0 for run in runs if run.too_busy]:
        yield f"other processes used up to {max(busy):.0%} of the CPU time: believe no speed of these"


def _contender(trainer: str, runs: Sequence[RunReport], first: Sequence[RunReport]) -> Contender:
    whole = _whole(runs)
    reference = next((run.losses for run in _whole(first)), None)
    against = {_turn(run): run for run in first}
    pairs = [(run, against[_turn(run)]) for run in runs if _turn(run) in against]
    return Contender(
        trainer=trainer,
        verdict=min((run.outcome for run in runs), key=WORST.index),
        failed=tuple(dict.fromkeys(finding.check for run in runs for finding in run.failed)),
        turns=len(runs),
        tokens_per_second=_median([run.tokens_per_second for run in runs]),
        rate_ratio=_median([_ratio(run.tokens_per_second, other.tokens_per_second) for run, other in pairs]),
        peak_bytes=None if (peak := _median([run.peak_bytes for run in runs])) is None else int(peak),
        peak_kind=next((run.peak_kind for run in runs if run.peak_kind), ""),
        peak_ratio=_median([_ratio(run.peak_bytes, other.peak_bytes) for run, other in pairs]),
        loss_difference=max((_difference(run.losses, reference) for run in whole if reference), default=None),
        repeats=len({run.losses for run in whole}) <= 1,
    )


WORST = ("fail", "error", "inconclusive", "skipped", "pass")


def _whole(runs: Iterable[RunReport]) -> list[RunReport]:
    ended = (run for run in runs if all(tried.outcome == AttemptOutcome.FINISHED for tried in run.trainings[-1:]))
    return [run for run in ended if run.losses]


def _difference(losses: Sequence[float], others: Sequence[float]) -> float:
    """Return the largest relative difference of two trainings' losses; infinite where one ended before the other."""
    if len(losses) != len(others):
        return math.inf
    pairs = zip(losses, others, strict=True)
    differences = [abs(one - other) / abs(other) if other else math.inf for one, other in pairs]
    return math.inf if any(map(math.isnan, differences)) else max(differences)


def _turn(run: RunReport) -> int:
    return run.entry.turn if run.entry else 0


def _ratio(value: float | None, other: float | None) -> float | None:
    return None if value is None or not other else value / other


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _cells(one: Contender) -> tuple[str, ...]:
    return (
        one.trainer,
        one.verdict,
        _number(one.tokens_per_second, ".4g"),
        _number(one.rate_ratio, ".3f"),
        "" if one.peak_bytes is None else f"{human_bytes(one.peak_bytes)} {one.peak_kind}",
        _number(one.peak_ratio, ".3f"),
        _number(one.loss_difference, ".1e"),
        str(one.turns),
    )


def _number(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"
