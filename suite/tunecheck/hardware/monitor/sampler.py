"""Sampling process: reads one GPU a few times a second and prints records, one JSON line each.

`python -m tunecheck.hardware.monitor.sampler UUID`. It prints the GPU's health and a first sample, then reads lines
from its standard input: a process id starts the sampling for that process, "stop" ends it with health and a sample
again. It ends when its input does, and with its parent. The training process never waits for it.
"""

from __future__ import annotations

import importlib
import os
import select
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from tunecheck.core.evidence import CardProcess, DeviceSample, Health, Record
from tunecheck.core.helper import die_with_parent
from tunecheck.core.trace import encode
from tunecheck.hardware.facts import NvmlState
from tunecheck.hardware.monitor.card import Card
from tunecheck.hardware.nvml import describe, nvml_session

N = TypeVar("N", int, float)

INTERVAL_SECONDS = 0.2
"""Interval between readings: NVML's own figures change no faster than about ten times a second."""
MOST_SAMPLES = 300
"""Samples kept per attempt: one a second for a short one, one in half a minute for three hours; 100 kB in a trace."""
KEPT_SECONDS = 1.0
"""Duration whose readings become one sample."""


def main(uuid: str) -> int:
    """Sample the GPU until "stop" and return the exit status; an error of NVML is printed on standard error."""
    die_with_parent()
    nvml: Any = importlib.import_module("pynvml")
    try:
        with nvml_session(nvml):
            card = Card(nvml, uuid)
            watch(card, commands(sys.stdin.fileno(), INTERVAL_SECONDS), _print)
            if card.unanswered:
                print(card.unanswered, file=sys.stderr)
                return 1
    except nvml.NVMLError as error:
        fault = describe(error)
        if fault.state is NvmlState.GPU_LOST:
            _print(Health(when="before", fault=fault.problem))
        print(fault.problem, file=sys.stderr)
        return 1
    return 0


def watch(card: Card, orders: Iterator[str], say: Callable[[Record], None]) -> None:
    """Emit health and a sample at once, samples from the first process id on, health and a sample again at "stop".

    Each empty order is the time for one reading. Orders that end without a "stop" ended because the parent did.
    """
    say(card.health("before"))
    say(card.sample(None))
    process_id: int | None = None
    readings: list[DeviceSample] = []
    for order in orders:
        if order == "stop":
            if process_id is not None:
                readings.append(card.sample(process_id))  # the Xid of the error that ended the training is news yet
                say(merged(readings))
            say(card.health("after"))
            say(card.sample(None))
            return
        if order:
            process_id = int(order)
        elif process_id is not None:
            readings.append(card.sample(process_id))
            if readings[-1].at - readings[0].at >= KEPT_SECONDS - INTERVAL_SECONDS:
                say(merged(readings))
                readings = []


def commands(source: int, interval_seconds: float) -> Iterator[str]:
    """Yield each line that arrives on this file descriptor, and "" whenever none came for the interval."""
    text = b""
    while True:
        ready, _, _ = select.select([source], [], [], interval_seconds)
        if not ready:
            yield ""
            continue
        chunk = os.read(source, 4096)
        if not chunk:
            return
        *lines, text = (text + chunk).split(b"\n")
        yield from (line.decode() for line in lines)


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


def _print(record: Record) -> None:
    print(encode(record), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
