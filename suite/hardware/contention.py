"""Does anybody else compute on this machine right now, and did anybody while we did?"""

from __future__ import annotations

import os
import time

import psutil

COMPUTING = 0.25
"""Cores that a process keeps busy on average over its life from which on it counts as one that computes."""
YOUNGEST_SECONDS = 5.0
"""A process younger than this has not shown yet what it is: whatever starts is busy at first."""


class CpuContention:
    """Watches how much processor time others use, from its making on; what a hypervisor steals is used by others too.

    The processes of other containers count, although they cannot be seen: the sums are the whole machine's.
    """

    def __init__(self) -> None:
        self._busy, self._own, self._idle = _times()

    def busy_share(self) -> float:
        """Share of the machine's processor time that went to others since the start; 0.0 when no time has passed."""
        busy, own, idle = _times()
        whole = (busy - self._busy) + (idle - self._idle)
        others = (busy - self._busy) - (own - self._own)
        return min(1.0, max(0.0, others / whole)) if whole > 0 else 0.0

    def busy_cores(self) -> float:
        """The same in cores of this machine."""
        return self.busy_share() * (os.cpu_count() or 1)


def recent_busy_cores() -> float:
    """Cores that others' living processes keep busy by their average over their lives, at most the last minute's load.

    A short look misses a neighbour's training that is just loading or saving. The load alone would count an earlier
    session of ours too, whose processes are gone; the processes alone would count one that has been idle for long.
    """
    us, now = psutil.Process(), time.time()
    family = {us.pid, *(process.pid for process in (*us.parents(), *us.children(recursive=True)))}
    cores = 0.0
    for process in psutil.process_iter(["cpu_times", "create_time"]):
        times, created = process.info["cpu_times"], process.info["create_time"]
        if times is None or created is None or process.pid in family or now - created < YOUNGEST_SECONDS:
            continue
        average = (times.user + times.system) / (now - created)
        cores += average if average >= COMPUTING else 0.0
    return min(cores, psutil.getloadavg()[0])


def _times() -> tuple[float, float, float]:
    """Processor seconds of the whole machine busy, of this process, and of the whole machine idle."""
    machine, own = psutil.cpu_times(), psutil.Process().cpu_times()
    idle = machine.idle + getattr(machine, "iowait", 0.0)
    return sum(machine[:8]) - idle, own.user + own.system, idle
