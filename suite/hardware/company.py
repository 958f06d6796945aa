"""Does anybody else compute on this machine right now?"""

from __future__ import annotations

import os

import psutil


class Company:
    """Watches how much processor time others use, from its making on."""

    def __init__(self) -> None:
        self._busy, self._own, self._idle = _times()

    def busy_cores(self) -> float:
        """Cores that other processes have kept busy on average since the start; 0.0 when no time has passed."""
        busy, own, idle = _times()
        whole = (busy - self._busy) + (idle - self._idle)
        others = (busy - self._busy) - (own - self._own)
        return max(0.0, others / whole * (os.cpu_count() or 1)) if whole > 0 else 0.0


def _times() -> tuple[float, float, float]:
    """Processor seconds of the whole machine busy, of this process, and of the whole machine idle."""
    machine, own = psutil.cpu_times(), psutil.Process().cpu_times()
    idle = machine.idle + getattr(machine, "iowait", 0.0)
    return sum(machine[:8]) - idle, own.user + own.system, idle
