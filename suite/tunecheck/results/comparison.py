"""Rank the runs of one comparison: what each trained, its results, its costs.

From the traces alone. A run that was not judged good has no rank: its numbers may be those of a broken training.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tunecheck.core.check import grouped
from tunecheck.core.evidence import AttemptOutcome
from tunecheck.core.frozen import Frozen
from tunecheck.core.text import counted, human_bytes, human_seconds
from tunecheck.results import RunReport

MEMORISED_NATS = 0.1
"""A loss on training rows below which nine tokens of ten are memorised: exp(-0.1) = 0.9."""


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
    """A sentence for each row whose numbers need one."""
    runs: tuple[RunReport, ...]
    """One for each row, in the rows' order."""


HEADS = ("rank", "strategy", "trained", "held-out perplexity", "training loss", "time", "rows/s", "peak", "device")


def comparisons(runs: Iterable[RunReport]) -> list[SideBySide]:
    """Return each comparison of which at least one run trained, best run first, those without a rank last."""
    found = []
    for (name, model), group in trained(run for run in runs if run.entry and not run.entry.turn):
        ranked = sorted((run for run in group if not _why_not(run)), key=_merit)
        others = [run for run in group if _why_not(run)]
        places = [*map(str, range(1, len(ranked) + 1)), *("-" for _ in others)]
        told = [(run, _lesson(run)) for run in ranked] + [(run, f"no rank: {_why_not(run)}") for run in others]
        by = "ranked by held-out perplexity after training; where three digits of it are equal, by peak memory"
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
    entry = run.entry
    if run.outcome != "pass" or entry is None:
        failed = ", ".join(finding.check for finding in run.failed)
        return f"failed {failed}" if failed else f"{run.outcome}: {run.reason}"
    if not entry.pretrained:
        return "its weights are random, so that nothing is said about learning"
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
    word = "memorised" if end < MEMORISED_NATS else "overfitted"
    return f"{word}: a loss of {end:.2g} on its training rows, {times:.3g} times the held-out perplexity of its start"


def _cells(place: str, run: RunReport) -> tuple[str, ...]:
    entry = run.entry
    assert entry is not None
    ends = [(tried.device, tried.outcome.replace("_", " ")) for tried in run.trainings]
    devices = [device if how == AttemptOutcome.FINISHED else f"{device} ({how})" for device, how in ends]
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
        " → ".join(devices),
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
