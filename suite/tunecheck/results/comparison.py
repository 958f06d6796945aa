"""Several runs side by side, from their traces: those of a comparison, ranked, and those of a benchmark, by trainer.

A run of a comparison that was not judged good has no rank: its numbers may be those of a broken training. A benchmark
is the same training by several trainers, in turns: rates and peaks are medians over the turns; ratios are taken within
a turn, between trainings that follow each other on one machine, so that what slows all of it for a while cancels.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from statistics import median
from typing import Any

from tunecheck.core.check import grouped
from tunecheck.core.evidence import AttemptOutcome
from tunecheck.core.frozen import Frozen
from tunecheck.core.text import counted, human_bytes, human_seconds
from tunecheck.results import RunReport


class SideBySide(Frozen):
    """Several runs as one table, which every report shows."""

    title: str
    ranking: str
    """The criterion of the ranking, or how the numbers were made."""
    named_by: str
    """What tells the rows apart: strategy, trainer."""
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    runs: tuple[RunReport, ...]


HEADS = ("rank", "strategy", "trained", "held-out perplexity", "training loss", "time", "rows/s", "peak", "device")


def comparisons(runs: Iterable[RunReport]) -> list[SideBySide]:
    """Return each comparison of which at least one run trained, best run first, those without a rank last."""
    found = []
    for (name, model), group in trained(run for run in runs if run.entry and not run.entry.turn):
        ranked = sorted((run for run in group if not _why_not(run)), key=_merit)
        others = [run for run in group if _why_not(run)]
        places = [*map(str, range(1, len(ranked) + 1)), *("-" for _ in others)]
        told = [(run, _lesson(run)) for run in ranked] + [(run, f"no rank: {_why_not(run)}") for run in others]
        by = "ranked by held-out perplexity after training; if three digits are equal, by peak memory"
        table = SideBySide(
            title=f"{name} on {model}",
            ranking=by if ranked else "not ranked",
            named_by="strategy",
            heads=HEADS,
            rows=tuple(_cells(place, run) for place, run in zip(places, (*ranked, *others), strict=True)),
            notes=tuple(f"{run.entry.name}: {words}" for run, words in told if run.entry and words),
            runs=(*ranked, *others),
        )
        found.append(table)
    return found


def trained(runs: Iterable[RunReport]) -> Iterator[tuple[tuple[str, str], list[RunReport]]]:
    """Yield comparison and model, with their runs, of which at least one trained."""
    held = grouped(((run.entry.comparison, run.model), run) for run in runs if run.entry is not None)
    yield from ((key, group) for key, group in held.items() if any(run.losses for run in group))


def _merit(run: RunReport) -> tuple[float, float]:
    loss = run.entry.heldout_loss_end if run.entry else None
    perplexity = math.exp(min(loss, 700.0)) if loss is not None else math.inf
    return float(f"{perplexity:.3g}"), run.peak_bytes if run.peak_bytes is not None else math.inf


def _why_not(run: RunReport) -> str:
    """Return why this run has no rank; empty when it has one."""
    if run.outcome != "pass" or (entry := run.entry) is None:
        failed = ", ".join(finding.check for finding in run.failed)
        return f"failed {failed}" if failed else f"{run.outcome}: {run.reason}"
    if not entry.pretrained:
        return "its weights are random, so the numbers say nothing about learning"
    if entry.heldout_loss_end is None or not math.isfinite(entry.heldout_loss_end):
        return "it was not evaluated on held-out rows before and after"
    return ""


def _lesson(run: RunReport) -> str:
    """Return what the two losses together mean, where it is not that the model learned."""
    entry, end = run.entry, run.probe_loss_end
    if entry is None or entry.heldout_loss_start is None or entry.heldout_loss_end is None or end is None:
        return ""
    times = math.exp(min(entry.heldout_loss_end - entry.heldout_loss_start, 700.0))
    if times <= 1 or run.probe_loss_start is None or end >= run.probe_loss_start:
        return ""
    word = "memorised" if end < 0.1 else "overfitted"  # exp(-0.1) = 0.9: nine tokens of ten
    return f"{word}: the training rows end at a loss of {end:.2g}, held-out perplexity grew {times:.3g}-fold"


def _cells(place: str, run: RunReport) -> tuple[str, ...]:
    entry = run.entry
    assert entry is not None
    ends = [(tried.device, tried.outcome.replace("_", " ")) for tried in run.trainings]
    trained = ""
    if entry.trained_parameters is not None and entry.total_parameters:
        trained = f"{entry.trained_parameters:,} ({100 * entry.trained_parameters / entry.total_parameters:.3g} %)"
    return (
        place,
        entry.name,
        trained,
        _change(_perplexity(entry.heldout_loss_start), _perplexity(entry.heldout_loss_end)),
        _change(*("" if loss is None else f"{loss:.3f}" for loss in (run.probe_loss_start, run.probe_loss_end))),
        "" if entry.training_seconds is None else human_seconds(entry.training_seconds),
        "" if entry.rows_per_second is None else f"{entry.rows_per_second:.3g}",
        "" if run.peak_bytes is None else f"{human_bytes(run.peak_bytes)} {run.peak_kind}",
        " → ".join([device if how == AttemptOutcome.FINISHED else f"{device} ({how})" for device, how in ends]),
    )


def _change(before: str, after: str) -> str:
    return f"{before} → {after}" if after else before


def _perplexity(loss: float | None) -> str:
    if loss is None:
        return ""
    return f"{math.exp(loss):,.4g}" if loss < math.log(10_000) else f"{math.exp(min(loss, 700.0)):.3g}"


def condensed(runs: Sequence[RunReport]) -> list[RunReport]:
    """Return the runs, those of one comparison that were skipped for the same reason as one row that counts them."""
    skipped = {run.name: (run.entry.comparison, run.reason) for run in runs if run.entry and run.outcome == "skipped"}
    return [
        replace(first, run=f"{first.entry.comparison.partition('/')[2]}, {counted(len(others) + 1, 'run')}")
        if others and first.entry
        else first
        for first, *others in grouped((skipped.get(run.name, run.name), run) for run in runs).values()
    ]


class Contender(Frozen):
    """What one trainer's turns come to; None where they did not come so far."""

    trainer: str
    verdict: str
    failed: tuple[str, ...]
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
    """Largest relative difference of a step's loss from the first trainer's first turn; of turns that ended."""
    repeats: bool
    """Whether the losses of all its turns are equal to the last bit."""


BENCHMARK_HEADS = ("trainer", "verdict", "tokens/s", "ratio", "peak", "ratio", "loss differs by", "turns")


def benchmarks(runs: Iterable[RunReport]) -> list[SideBySide]:
    """Return each benchmark of which at least one turn trained, in the order of the report, with each first turn."""
    return [
        SideBySide(
            title=f"trainers of {name} on {model}",
            ranking=f"medians over the turns; ratios and losses against {contenders[0].trainer}, within a turn",
            named_by="trainer",
            heads=BENCHMARK_HEADS,
            rows=tuple(map(_contender_cells, contenders)),
            notes=tuple(_notes(contenders, [run for of_trainer in turns for run in of_trainer])),
            runs=tuple(of_trainer[0] for of_trainer in turns),
        )
        for name, model, contenders, turns in _compared(runs)
    ]


def plain_benchmarks(runs: Iterable[RunReport]) -> list[dict[str, Any]]:
    """Return the same as plain data."""
    found = _compared(runs)
    return [{"name": name, "model": model, "trainers": [*map(asdict, own)]} for name, model, own, _ in found]


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
            yield f"{one.trainer}: its losses differ between turns, so they cannot be reproduced"
    if busy := [run.others_busy_share or 0.0 for run in runs if run.too_busy]:
        yield f"other processes used up to {max(busy):.0%} of the CPU time: do not trust these speeds"


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
    return median(known) if (known := [value for value in values if value is not None]) else None


def _contender_cells(one: Contender) -> tuple[str, ...]:
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
