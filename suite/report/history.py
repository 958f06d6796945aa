"""Standings in words: what the terminal, the summary, the page and the annotations say about the nights before."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

from suite.core.text import counted, human_bytes
from suite.results.baseline import FEWEST_SESSIONS, FigureComparison
from suite.results.figures import FIGURES, change

TITLES = {"worse": "WORSE THAN USUAL", "suspect": "WORSE FOR THE FIRST NIGHT", "better": "better than usual"}
"""Of the standings that have something to tell."""


def title(standing: FigureComparison) -> str:
    """The figure's name: "throughput"."""
    return FIGURES[standing.figure].title


def told(standing: FigureComparison) -> str:
    """What was measured against what is usual, in a sentence, with what changed since the night before."""
    parts = [amount(standing.figure, standing.value)]
    if standing.median is not None and standing.limit is not None:
        parts.append(f"usual {amount(standing.figure, standing.median)} ({source(standing)})")
        parts.append(f"limit {amount(standing.figure, standing.limit)}")
    if standing.previous is not None:
        parts.append(f"the night before {amount(standing.figure, standing.previous)}")
    sentence = ", ".join(parts)
    if standing.status == "suspect":
        sentence += "; a regression if the next night is too"
    return f"{sentence}; changed since: {standing.changed}" if standing.changed else sentence


def source(standing: FigureComparison) -> str:
    """What it was held against: "median of 12 nights"."""
    where = f" in {standing.baseline}" if standing.baseline else ""
    return f"median of {counted(standing.sessions, 'night')}{where}"


def amount(figure: str, value: float) -> str:
    """A value of this figure with its unit."""
    unit = FIGURES[figure].unit
    if not math.isfinite(value):
        return str(value)
    return human_bytes(value) if unit == "bytes" else f"{value:.4g} {unit}"


def changed_by(before: float, after: float) -> str:
    """The relative change: "+3.1 %"; empty where there is none to tell."""
    share = change(before, after)
    return "" if share is None else f"{share:+.1%}".replace("%", " %")


def in_short(standings: Sequence[FigureComparison]) -> Iterator[tuple[str, str]]:
    """A run's name and a sentence for what is not news: all as usual, or no baseline yet and how far it has come.

    Nothing for the first night of a key.
    """
    for run, held in groupby(standings, key=lambda standing: standing.run):
        quiet = list(held)
        usual = [standing for standing in quiet if standing.status == "steady"]
        if usual:
            nights = f"{source(usual[0])}{' or more' if len({one.sessions for one in usual}) > 1 else ''}"
            yield run, f"{counted(len(usual), 'figure')} as usual ({nights})"
        new = [standing for standing in quiet if standing.status == "no baseline" and standing.previous is not None]
        if new:
            nights = f"no baseline yet: {new[0].sessions} of {FEWEST_SESSIONS} nights"
            yield run, f"{nights}; against the last one: {', '.join(filter(None, map(_since, new)))}"


def _since(standing: FigureComparison) -> str:
    share = changed_by(standing.previous or 0.0, standing.value)
    return f"{title(standing)} {share}" if share else ""
