"""Figures against their baselines, in words."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from tunecheck.core.text import counted
from tunecheck.results.baseline import FEWEST_SESSIONS, FigureComparison
from tunecheck.results.figures import FIGURES, change

STATUS_TITLES = {"worse": "REGRESSION", "suspect": "SUSPECTED REGRESSION", "better": "improvement"}
"""Statuses that a report lists one by one, the most urgent first."""


def sentence(comparison: FigureComparison) -> str:
    """Return the value, its baseline and limit, the previous value, and which versions changed since."""
    amount = FIGURES[comparison.figure].amount
    parts = [amount(comparison.value)]
    if comparison.median is not None and comparison.limit is not None:
        parts.append(f"baseline {amount(comparison.median)} ({baseline_source(comparison)})")
        parts.append(f"limit {amount(comparison.limit)}")
    if comparison.previous is not None:
        parts.append(f"previous session {amount(comparison.previous)}")
    words = ", ".join(parts)
    if comparison.status == "suspect":
        words += "; a regression if the next session is worse too"
    return f"{words}; changed since: {comparison.changed}" if comparison.changed else words


def baseline_source(comparison: FigureComparison) -> str:
    """Return what the baseline was computed from: "median of 12 sessions"."""
    where = f" in {comparison.baseline}" if comparison.baseline else ""
    return f"median of {counted(comparison.sessions, 'session')}{where}"


def relative_change(before: float, after: float) -> str:
    """Return the relative change: "+3.1 %"; empty where it is no number."""
    share = change(before, after)
    return "" if share is None else f"{share:+.1%}".replace("%", " %")


def unremarkable(comparisons: Sequence[FigureComparison]) -> Iterator[tuple[str, str]]:
    """Yield a run and a sentence about its figures within the baseline, or without one; nothing for a first session."""
    for run, group in groupby(comparisons, key=lambda comparison: comparison.run):
        of_run = list(group)
        if steady := [one for one in of_run if one.status == "steady"]:
            sessions = f"{baseline_source(steady[0])}{' or more' if len({one.sessions for one in steady}) > 1 else ''}"
            yield run, f"{counted(len(steady), 'figure')} within the baseline ({sessions})"
        if new := [one for one in of_run if one.status == "no baseline" and one.previous is not None]:
            sessions = f"no baseline yet: {new[0].sessions} of {FEWEST_SESSIONS} sessions"
            shares = {FIGURES[one.figure].title: relative_change(one.previous or 0.0, one.value) for one in new}
            since = ", ".join(f"{title} {share}" for title, share in shares.items() if share)
            yield run, f"{sessions}; against the previous one: {since}"
