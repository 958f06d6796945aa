"""Names of a model's tensors in a sentence: many of them at once, and what tells some from others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

LONGEST_PART = 3
"""Words between dots by which tensors are told apart."""


def by_layer(names: Iterable[str]) -> str:
    """Return all of these names, those of the layers that have the same ones together: "layers.0-3: q_proj, v_proj"."""
    layers: dict[tuple[str, str], list[int]] = {}
    for name in names:
        before, number, behind = re.match(r"(.*?)(?:\.(\d+)\.(.*))?$", name).groups()  # type: ignore[union-attr]
        layers.setdefault((before, behind or ""), []).extend([] if number is None else [int(number)])
    together: dict[str, list[str]] = {}
    for (before, behind), numbers in layers.items():
        together.setdefault(f"{before}.{_ranges(numbers)}" if numbers else before, []).append(behind)
    return "; ".join(f"{where}: {', '.join(parts)}" if parts[0] else where for where, parts in together.items())


def _ranges(numbers: Iterable[int]) -> str:
    """Return whole numbers as ranges: "0-3,7"."""
    runs = []
    for _, run in groupby(enumerate(sorted(set(numbers))), lambda pair: pair[1] - pair[0]):
        held = [number for _, number in run]
        runs.append(str(held[0]) if len(held) == 1 else f"{held[0]}-{held[-1]}")
    return ",".join(runs)


def told_apart(names: Sequence[str], others: Sequence[str]) -> str:
    """Return the shortest part of a name, as a regular expression, that all of these have and none of the others.

    "" where there is none.
    """
    words = names[0].split(".")
    for length in range(1, LONGEST_PART + 1):
        for at in range(len(words) - length + 1):
            if words[at].isdigit():  # of a layer nobody can tell of which part
                continue
            part = ".".join(words[at : at + length])
            part = re.escape(f"{part}." if part[-1:].isdigit() else part)
            if all(re.search(part, name) for name in names) and not any(re.search(part, other) for other in others):
                return part
    return ""
