"""Figures against their baselines, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

from suite.core.text import counted, human_bytes
from suite.results.figures import FIGURES, change
from suite.results.standing import FEWEST_NIGHTS, Standing

STATUS_TITLES = {"worse": "REGRESSION", "suspect": "SUSPECTED REGRESSION", "better": "improvement"}
"""Statuses that a report lists one by one, the most urgent first."""


def title(standing: Standing) -> str:
    """Return the figure's name: "throughput"."""
    return FIGURES[standing.figure].title


def sentence(standing: Standing) -> str:
    """Return the value, its baseline and limit, the previous value, and which versions changed since."""
    parts = [amount(standing.figure, standing.value)]
    if standing.median is not None and standing.limit is not None:
        parts.append(f"baseline {amount(standing.figure, standing.median)} ({baseline_source(standing)})")
        parts.append(f"limit {amount(standing.figure, standing.limit)}")
    if standing.previous is not None:
        parts.append(f"previous session {amount(standing.figure, standing.previous)}")
    words = ", ".join(parts)
    if standing.status == "suspect":
        words += "; a regression if the next session is worse too"
    return f"{words}; changed since: {standing.changed}" if standing.changed else words


def baseline_source(standing: Standing) -> str:
    """Return what the baseline was computed from: "median of 12 sessions"."""
    where = f" in {standing.baseline}" if standing.baseline else ""
    return f"median of {counted(standing.nights, 'session')}{where}"


def amount(figure: str, value: float) -> str:
    """Return the value with its unit."""
    unit = FIGURES[figure].unit
    if not math.isfinite(value):
        return str(value)
    return human_bytes(value) if unit == "bytes" else f"{value:.4g} {unit}"


def relative_change(before: float, after: float) -> str:
    """Return the relative change: "+3.1 %"; empty where it is no number."""
    share = change(before, after)
    return "" if share is None else f"{share:+.1%}".replace("%", " %")


def unremarkable(standings: Sequence[Standing]) -> Iterator[tuple[str, str]]:
    """Yield a run's name with a sentence about its figures within the baseline, or without a baseline yet.

    Nothing for the first session of a configuration on a device.
    """
    for run, group in groupby(standings, key=lambda standing: standing.run):
        of_run = list(group)
        steady = [standing for standing in of_run if standing.status == "steady"]
        if steady:
            sessions = f"{baseline_source(steady[0])}{' or more' if len({one.nights for one in steady}) > 1 else ''}"
            yield run, f"{counted(len(steady), 'figure')} within the baseline ({sessions})"
        new = [standing for standing in of_run if standing.status == "no baseline" and standing.previous is not None]
        if new:
            sessions = f"no baseline yet: {new[0].nights} of {FEWEST_NIGHTS} sessions"
            yield run, f"{sessions}; against the previous one: {', '.join(filter(None, map(_since, new)))}"


def _since(standing: Standing) -> str:
    share = relative_change(standing.previous or 0.0, standing.value)
    return f"{title(standing)} {share}" if share else ""
