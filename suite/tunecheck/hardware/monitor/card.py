"""NVML readings of one GPU, in the sampling process, and their merging. What a GPU does not report is None."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import psutil

from tunecheck.core.evidence import CardProcess, DeviceSample, Health
from tunecheck.hardware.facts import NvmlState
from tunecheck.hardware.nvml import Reader, processes_of

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
RECOVERY_ACTION_FIELD = 230
GPU_TEMPERATURE, SM_CLOCK = 0, 1
UNCORRECTED, VOLATILE = 1, 0
MOST_SAMPLES = 300
"""Samples kept per attempt: one a second for a short one, one in half a minute for three hours; 100 kB in a trace."""
MAXIMA = ("used_bytes", "process_bytes", "temperature_celsius")
"""Figures of which a merged sample has the largest, None when none is known."""
MOST_EVENTS = 100
"""Largest number of events per reading: a failing GPU must not hold up the sampling."""


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
        counters = {
            "uncorrected_ecc": self._ask("nvmlDeviceGetTotalEccErrors", UNCORRECTED, VOLATILE),
            "remapped_rows_uncorrected": remapped[1],
            "remap_pending": _flag(remapped[2]),
            "remap_failed": _flag(remapped[3]),
            "retired_pages_pending": _flag(self._ask("nvmlDeviceGetRetiredPagesPendingStatus")),
            "recovery_action": self._field(RECOVERY_ACTION_FIELD),
        }
        faults = [*before, *self._reader.faults]
        lost = dict.fromkeys(str(f.nvml_problem) for f in faults if f.nvml_state is NvmlState.GPU_LOST)
        return Health(when=when, fault="; ".join(lost), **counters)

    def sample(self, process_id: int | None) -> DeviceSample:
        """Return one reading; `process_id` is the training process or what started it, None before there is one."""
        at = self._clock()
        self._training = process_id or self._training
        processes = self._processes()
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

    def _processes(self) -> list[CardProcess]:
        """Return the processes on the GPU, each once: one that computes and draws is listed as both."""
        found: dict[int, CardProcess] = {}
        for kind in ("Graphics", "Compute"):
            for p in processes_of(self._reader, self._handle, "the GPU", kind) or ():
                found[p.pid] = replace(p, descendant=self._descends(p.pid))
        return list(found.values())

    def _clock_reasons(self) -> dict[str, int] | None:
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # the name that older drivers and bindings know
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if bits is None else {name: 1 for bit, name in CLOCK_REASONS.items() if bits & bit}

    def _field(self, number: int) -> int | None:
        """Return one of NVML's numbered fields; None when the GPU does not know it: its value is then undefined."""
        for field in self._ask("nvmlDeviceGetFieldValues", [number]) or ():
            return int(field.value.uiVal) if field.nvmlReturn == 0 else None
        return None

    def _listen(self) -> Any:
        wanted = sum(EVENTS) & (self._ask("nvmlDeviceGetSupportedEventTypes") or 0)
        events = self._reader.ask("nvmlEventSetCreate") if wanted else None
        if events is None:
            return None
        try:
            self._nvml.nvmlDeviceRegisterEvents(self._handle, wanted, events)
        except self._nvml.NVMLError:  # not every user may subscribe
            return None
        return events

    def _news(self) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Return Xids and names of other events since the last call, without waiting."""
        xids, names = [], []
        for _ in range(MOST_EVENTS if self._events is not None else 0):
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


def thinned(samples: Sequence[DeviceSample], most: int = MOST_SAMPLES) -> list[DeviceSample]:
    """Merge neighbouring samples until at most this many are left. No maximum and no Xid is lost."""
    group = -(-len(samples) // most) or 1
    return [merged(samples[first : first + group]) for first in range(0, len(samples), group)]


def merged(samples: Sequence[DeviceSample]) -> DeviceSample:
    """Merge consecutive samples, at least one: maxima, mean clock, counts of clock reasons, each process once."""
    first, last = samples[0], samples[-1]
    seen = [process for sample in samples for process in sample.others]
    known = {name: [held for one in samples if (held := getattr(one, name)) is not None] for name in MAXIMA}
    clocks = [(sample.sm_clock_mhz, sample.readings) for sample in samples if sample.sm_clock_mhz is not None]
    reasons = [sample.clock_reasons for sample in samples if sample.clock_reasons is not None]
    return DeviceSample(
        at=first.at,
        seconds=last.at + last.seconds - first.at,
        readings=sum(sample.readings for sample in samples),
        **{name: max(values, default=None) for name, values in known.items()},
        process_seen=any(sample.process_seen for sample in samples),
        sm_clock_mhz=fmean([clock for clock, _ in clocks], [weight for _, weight in clocks]) if clocks else None,
        clock_reasons=dict(sum(map(Counter, reasons), Counter())) if reasons else None,
        others=tuple({process.pid: process for process in sorted(seen, key=lambda p: p.used_bytes or 0)}.values()),
        xids=tuple(xid for sample in samples for xid in sample.xids),
        events=tuple(event for sample in samples for event in sample.events),
    )
