"""The phases of an attempt: how long each took and what memory it needed, the probes' share apart."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch

from tunecheck.core.evidence import Phase, Record
from tunecheck.hardware.contention import CpuContention


class Phases:
    """Writes a Phase record for each phase of an attempt on this device.

    The allocator's statistics are read where a phase begins and ends and around the probes, outside the time of a step.
    """

    def __init__(self, device: Any, emit: Callable[[Record], None], memory: Any = None) -> None:
        """`memory` stands in for torch.cuda."""
        self._device, self._emit = device, emit
        self._memory: Any = (memory or torch.cuda) if device.type == "cuda" else None
        self._own: dict[str, int] = {}
        self._probes: dict[str, int] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What happens in the block is this phase. It is recorded also when memory runs out in it."""
        before, company = self._begin(), CpuContention()
        started_at = time.monotonic()
        try:
            yield
        except RuntimeError as error:  # torch's OutOfMemoryError is one; after any other the device may not answer
            if type(error).__name__ == "OutOfMemoryError":
                self._end(name, started_at, before, company)
            raise
        self._end(name, started_at, before, company)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What happens in the block is the probes': its peak does not count as the training's."""
        self._collect(self._own)
        try:
            yield
        finally:
            self._collect(self._probes)

    def _begin(self) -> dict[str, int]:
        self._own, self._probes = {}, {}
        if self._memory is None:
            return {}
        self._memory.synchronize(self._device)
        self._memory.reset_peak_memory_stats(self._device)
        return self._counts()

    def _collect(self, peaks: dict[str, int]) -> None:
        """Add the peaks since the last time to these, and start over."""
        if self._memory is None:
            return
        statistics = self._memory.memory_stats_as_nested_dict(self._device)  # memory_stats would flatten it
        for kind in ("allocated", "requested", "reserved"):
            peaks[kind] = max(peaks.get(kind, 0), statistics[f"{kind}_bytes"]["all"]["peak"])
        self._memory.reset_peak_memory_stats(self._device)

    def _counts(self) -> dict[str, int]:
        statistics = self._memory.memory_stats_as_nested_dict(self._device)
        return {name: statistics[name] for name in ("num_alloc_retries", "num_ooms")}

    def _end(self, name: str, started_at: float, before: dict[str, int], company: CpuContention) -> None:
        figures: dict[str, int | None] = {}
        if self._memory is not None:
            self._memory.synchronize(self._device)
            after = self._counts()
            self._collect(self._own)
            figures = {
                "peak_allocated_bytes": self._own["allocated"],
                "peak_requested_bytes": self._own["requested"],
                "peak_reserved_bytes": max(self._own["reserved"], self._probes.get("reserved", 0)),
                "probes_peak_allocated_bytes": self._probes.get("allocated"),
                "allocation_retries": after["num_alloc_retries"] - before["num_alloc_retries"],
                "out_of_memory_count": after["num_ooms"] - before["num_ooms"],
            }
        seconds, process_bytes = time.monotonic() - started_at, psutil.Process().memory_info().rss
        self._emit(
            Phase(
                name=name,
                seconds=seconds,
                started_at=started_at,
                process_bytes=process_bytes,
                others_busy_share=company.busy_share(),
                **figures,
            )
        )
