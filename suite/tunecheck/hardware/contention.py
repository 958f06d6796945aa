"""CPU contention: processor time that other processes use, before and during a session."""

import os
import time
from collections.abc import Callable, Iterable

import psutil


class CpuContention:
    """Processor time of others since this was made: containers and steal time too, other ranks and `children` not."""

    def __init__(self, children: Callable[[], Iterable[psutil.Process]] = tuple) -> None:
        self._children = children
        self._before = _times(children())

    def busy_share(self) -> float:
        """Return the share of the machine's processor time that others used; 0.0 when no time has passed."""
        busy, own, idle = (after - before for before, after in zip(self._before, _times(self._children()), strict=True))
        return min(1.0, max(0.0, (busy - own) / (busy + idle))) if busy + idle > 0 else 0.0

    def busy_cores(self) -> float:
        return self.busy_share() * (os.cpu_count() or 1)


def recent_busy_cores() -> float:
    """Return the cores that others' running processes keep busy on average, at most the last minute's load."""
    us, now = psutil.Process(), time.time()
    family = {us.pid, *(process.pid for process in (*us.parents(), *us.children(recursive=True)))}
    cores = 0.0
    for process in psutil.process_iter(["cpu_times", "create_time"]):
        times, created = process.info["cpu_times"], process.info["create_time"]
        if times is None or created is None or process.pid in family or now - created < 5:
            continue  # every process is busy while it starts
        average = (times.user + times.system) / (now - created)
        cores += average if average >= 0.25 else 0.0  # else it does not count as computing
    # the load counts an earlier session of our own, the averages a process that has been idle for long
    return min(cores, psutil.getloadavg()[0])


def _times(children: Iterable[psutil.Process]) -> tuple[float, float, float]:
    """Return processor seconds of the machine busy, of this training's processes and these, and of the machine idle."""
    machine = psutil.cpu_times()
    idle = machine.idle + getattr(machine, "iowait", 0.0)
    us = psutil.Process()
    # torchrun's agent has started the other ranks on this machine, too
    agent = us.parent() if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1 else None
    ranks = [us] if agent is None else agent.children()
    return sum(machine[:8]) - idle, sum(map(_seconds, (*ranks, *children))), idle


def _seconds(process: psutil.Process) -> float:
    try:
        used = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return used.user + used.system
