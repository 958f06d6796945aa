"""Merging of samples: a trace stays small however long the run is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from tunecheck.core.evidence import CardProcess, DeviceSample

N = TypeVar("N", int, float)

MOST_SAMPLES = 300
"""Samples kept per attempt: one a second for a short one, one in half a minute for three hours; 100 kB in a trace."""


def thinned(samples: Sequence[DeviceSample], most: int = MOST_SAMPLES) -> list[DeviceSample]:
    """Merge neighbouring samples until at most this many are left. No maximum and no Xid is lost."""
    group = -(-len(samples) // most) or 1
    return [merged(samples[first : first + group]) for first in range(0, len(samples), group)]


def merged(samples: Sequence[DeviceSample]) -> DeviceSample:
    """Merge consecutive samples, at least one: maxima, the mean clock, counts of clock reasons."""
    first, last = samples[0], samples[-1]
    return DeviceSample(
        at=first.at,
        seconds=last.at + last.seconds - first.at,
        readings=sum(sample.readings for sample in samples),
        used_bytes=largest(sample.used_bytes for sample in samples),
        process_bytes=largest(sample.process_bytes for sample in samples),
        process_seen=any(sample.process_seen for sample in samples),
        sm_clock_mhz=_mean([(sample.sm_clock_mhz, sample.readings) for sample in samples]),
        temperature_celsius=largest(sample.temperature_celsius for sample in samples),
        power_watts=largest(sample.power_watts for sample in samples),
        clock_reasons=_counted([sample.clock_reasons for sample in samples]),
        others=_largest_of_each(process for sample in samples for process in sample.others),
        xids=tuple(xid for sample in samples for xid in sample.xids),
        events=tuple(event for sample in samples for event in sample.events),
    )


def largest(values: Iterable[N | None]) -> N | None:
    """Return the largest of the known values; None when none is known."""
    return max((value for value in values if value is not None), default=None)


def _mean(values: list[tuple[float | None, int]]) -> float | None:
    known = [(value, weight) for value, weight in values if value is not None]
    weights = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / weights if weights else None


def _counted(counts: list[dict[str, int] | None]) -> dict[str, int] | None:
    known = [count for count in counts if count is not None]
    names = dict.fromkeys(name for count in known for name in count)
    return {name: sum(count.get(name, 0) for count in known) for name in names} if known else None


def _largest_of_each(processes: Iterable[CardProcess]) -> tuple[CardProcess, ...]:
    found: dict[int, CardProcess] = {}
    for process in processes:
        before = found.get(process.pid)
        if before is None or (process.used_bytes or 0) > (before.used_bytes or 0):
            found[process.pid] = process
    return tuple(found.values())
