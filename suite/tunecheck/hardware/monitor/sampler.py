"""Sampling process: reads one GPU a few times a second and prints records, one JSON line each.

`python -m tunecheck.hardware.monitor.sampler UUID` prints the GPU's health and a first sample, then samples for each
process id that it reads, and prints both again at the end of its input. It ends with its parent, too.
"""

import contextlib
import importlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psutil

from tunecheck.core.evidence import DeviceSample, Health, Record
from tunecheck.core.helper import die_with_parent
from tunecheck.core.trace import encode
from tunecheck.hardware.facts import NvmlState
from tunecheck.hardware.monitor import merged
from tunecheck.hardware.nvml import Reader, describe, nvml_session, processes_of

INTERVAL_SECONDS = 0.2
"""Interval between readings: NVML's own figures change no faster than about ten times a second."""

CLOCK_REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}
"""Bits of NVML's clock event reasons, from nvml.h."""
EVENTS = {
    0x8: "Xid",
    0x400: "DRAM retirement",
    0x800: "DRAM retirement failure",
    0x1000: "non-fatal poison",
    0x2000: "fatal poison",
    0x4000: "GPU unavailable",
    0x8000: "recovery action",
}
"""Bits of the NVML events to which the monitor subscribes, from nvml.h."""
XID = 0x8

GPU_TEMPERATURE, SM_CLOCK = 0, 1
UNCORRECTED, VOLATILE = 1, 0


class Card:
    """One GPU, by UUID, inside an NVML session. Raises NVMLError when none has this UUID."""

    def __init__(self, nvml: Any, uuid: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml, self._reader, self._clock = nvml, Reader(nvml), clock
        self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        self._events = self._listen()
        self._parents: dict[int, frozenset[int]] = {}
        self._training: int | None = None

    @property
    def unanswered(self) -> str:
        """Errors with which the driver refused what was asked since the last reading of the counters, in words."""
        faults = self._reader.faults
        return "; ".join(str(fault.nvml_problem) for fault in faults if fault.nvml_state is not NvmlState.GPU_LOST)

    def health(self, when: str) -> Health:
        """Return the GPU's counters now, and whether it was lost since the session began."""
        before, self._reader = self._reader.faults, Reader(self._nvml)
        remapped = self._ask("nvmlDeviceGetRemappedRows") or (None,) * 4
        (action,) = self._ask("nvmlDeviceGetFieldValues", [230]) or (None,)
        counters = {
            "uncorrected_ecc": self._ask("nvmlDeviceGetTotalEccErrors", UNCORRECTED, VOLATILE),
            "remapped_rows_uncorrected": remapped[1],
            "remap_pending": _flag(remapped[2]),
            "remap_failed": _flag(remapped[3]),
            "retired_pages_pending": _flag(self._ask("nvmlDeviceGetRetiredPagesPendingStatus")),
            # the value is undefined where the GPU does not know the field
            "recovery_action": int(action.value.uiVal) if action is not None and action.nvmlReturn == 0 else None,
        }
        faults = [*before, *self._reader.faults]
        lost = dict.fromkeys(str(f.nvml_problem) for f in faults if f.nvml_state is NvmlState.GPU_LOST)
        return Health(when=when, fault="; ".join(lost), **counters)

    def sample(self, process_id: int | None) -> DeviceSample:
        """Return one reading; `process_id` is the training process or what started it, None before there is one."""
        at = self._clock()
        self._training = process_id or self._training
        kinds = (processes_of(self._reader, self._handle, "the GPU", kind) for kind in ("Graphics", "Compute"))
        # each once: one that computes and draws is listed as both
        found = {p.pid: replace(p, descendant=self._descends(p.pid)) for listed in kinds for p in listed or ()}
        processes = list(found.values())
        own = [p for p in processes if process_id is not None and (p.pid == process_id or p.descendant)]
        xids, events = self._news()
        return DeviceSample(
            at=at,
            seconds=self._clock() - at,
            readings=1,
            used_bytes=getattr(self._ask("nvmlDeviceGetMemoryInfo"), "used", None),
            process_bytes=own[0].used_bytes if own else None,
            process_seen=bool(own),
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", SM_CLOCK),
            temperature_celsius=self._ask("nvmlDeviceGetTemperature", GPU_TEMPERATURE),
            clock_reasons=self._clock_reasons(),
            others=tuple(process for process in processes if process not in own),
            xids=xids,
            events=events,
        )

    def _descends(self, pid: int) -> bool:
        """Return whether the training process started this one, as it does its ranks; also once it is gone."""
        if self._training is None or pid == self._training:
            return False
        if pid not in self._parents:
            self._parents[pid] = frozenset()  # of a process that is gone, or listed under the host's number
            with contextlib.suppress(psutil.Error):
                self._parents[pid] = frozenset(parent.pid for parent in psutil.Process(pid).parents())
        return self._training in self._parents[pid]

    def _ask(self, function: str, *arguments: Any) -> Any:
        return self._reader.ask(function, self._handle, *arguments, about="the GPU")

    def _clock_reasons(self) -> dict[str, int] | None:
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # the name that older drivers and bindings know
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if bits is None else {name: 1 for bit, name in CLOCK_REASONS.items() if bits & bit}

    def _listen(self) -> Any:
        wanted = sum(EVENTS) & (self._ask("nvmlDeviceGetSupportedEventTypes") or 0)
        if (events := self._reader.ask("nvmlEventSetCreate") if wanted else None) is not None:
            with contextlib.suppress(self._nvml.NVMLError):  # not every user may subscribe
                self._nvml.nvmlDeviceRegisterEvents(self._handle, wanted, events)
                return events
        return None

    def _news(self) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Return Xids and names of other events since the last call, without waiting."""
        xids, names = [], []
        for _ in range(100 if self._events is not None else 0):  # a failing GPU must not hold up the sampling
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._nvml.NVMLError:  # a timeout: no further events
                break
            if event.eventType == XID:
                xids.append(int(event.eventData))
            else:
                names.append(EVENTS.get(event.eventType, f"event {event.eventType:#x}"))
        return tuple(xids), tuple(names)


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)


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
        if (fault := describe(error)).nvml_state is NvmlState.GPU_LOST:
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
            if readings[-1].at - readings[0].at >= 1 - INTERVAL_SECONDS:  # a second's readings become one sample
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
