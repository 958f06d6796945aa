"""Sampling process: reads one GPU a few times a second and prints records, one JSON line each.

`python -m tunecheck.hardware.monitor.sampler UUID`. It prints the GPU's health and a first sample, then reads lines
from its standard input: a process id starts the sampling for that process, the end of the input ends it with health and
a sample again. It ends with its parent, too. The training process never waits for it.
"""

import importlib
import os
import select
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tunecheck.core.evidence import DeviceSample, Health, Record
from tunecheck.core.helper import die_with_parent
from tunecheck.core.trace import encode
from tunecheck.hardware.facts import NvmlState
from tunecheck.hardware.monitor.card import Card, merged
from tunecheck.hardware.nvml import describe, nvml_session

INTERVAL_SECONDS = 0.2
"""Interval between readings: NVML's own figures change no faster than about ten times a second."""
KEPT_SECONDS = 1.0
"""Duration whose readings become one sample."""


def main(uuid: str) -> int:
    """Sample the GPU until the input ends and return the exit status; an error of NVML is printed on standard error."""
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
        if fault.nvml_state is NvmlState.GPU_LOST:
            _print(Health(when="before", fault=str(fault.nvml_problem)))
        print(fault.nvml_problem, file=sys.stderr)
        return 1
    return 0


def watch(card: Card, orders: Iterator[str], say: Callable[[Record], None]) -> None:
    """Emit health and a sample first and last, samples from the first process id on, a reading for each empty order."""
    say(card.health("before"))
    say(card.sample(None))
    process_id: int | None = None
    readings: list[DeviceSample] = []
    for order in orders:
        if order:
            process_id = int(order)
        elif process_id is not None:
            readings.append(card.sample(process_id))
            if readings[-1].at - readings[0].at >= KEPT_SECONDS - INTERVAL_SECONDS:
                say(merged(readings))
                readings = []
    if process_id is not None:
        readings.append(card.sample(process_id))  # the Xid of the error that ended the training is news yet
        say(merged(readings))
    say(card.health("after"))
    say(card.sample(None))


def commands(source: int, interval_seconds: float) -> Iterator[str]:
    """Yield each line that arrives on this pipe, and "" whenever none came for the interval."""
    while True:
        if not select.select([source], [], [], interval_seconds)[0]:
            yield ""
        elif arrived := os.read(source, 4096):
            yield from arrived.decode().split()  # a line is written at once, so that it arrives whole
        else:
            return


def _print(record: Record) -> None:
    print(encode(record), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
