"""Who else computes on this machine: told from processor times and processes, here made up."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import psutil
import pytest

from tunecheck.config import find_run, load_run
from tunecheck.hardware import contention as company
from tunecheck.hardware.contention import CpuContention, recent_busy_cores
from tunecheck.session import TierSession

HOUR = 3600.0


def times(monkeypatch, *readings):
    """Processor seconds of each look: busy, our own, idle."""
    waiting = iter(readings)
    monkeypatch.setattr(company, "_times", lambda children: next(waiting))
    monkeypatch.setattr(company.os, "cpu_count", lambda: 4)


@pytest.mark.parametrize(
    ("after", "share"),
    [
        ((14.0, 5.0, 6.0), 0.0),
        ((14.0, 3.0, 6.0), 0.2),
        ((14.0, 1.0, 6.0), 0.4),
        ((10.0, 1.0, 0.0), 0.0),
        ((14.0, 9.0, 6.0), 0.0),
    ],
    ids=["ours", "half ours", "theirs", "no time has passed", "clocks of different grain"],
)
def test_the_others_share_is_what_is_busy_and_not_ours(monkeypatch, after, share):
    """Of all processor time since the making."""
    times(monkeypatch, (10.0, 1.0, 0.0), after, after)
    looking = CpuContention()

    assert looking.busy_share() == pytest.approx(share)
    assert looking.busy_cores() == pytest.approx(4 * share)


def neighbours(monkeypatch, *processes, load):
    """A machine with these processes (seconds of life, of computing) and this load."""
    now = company.time.time()
    made = [
        SimpleNamespace(
            pid=-number,
            info={
                "cpu_times": computed if computed is None else SimpleNamespace(user=computed, system=0.0),
                "create_time": now - age,
            },
        )
        for number, (age, computed) in enumerate(processes, start=1)
    ]
    monkeypatch.setattr(psutil, "process_iter", lambda attributes: made)
    monkeypatch.setattr(psutil, "getloadavg", lambda: (load, load, load))


@pytest.mark.parametrize(
    ("processes", "load", "cores"),
    [
        ([(HOUR, 1.5 * HOUR)], 2.0, 1.5),
        ([(HOUR, 1.5 * HOUR)], 0.1, 0.1),
        ([(HOUR, 0.2 * HOUR), (HOUR, 0.1 * HOUR)], 2.0, 0.0),
        ([], 2.0, 0.0),
        ([(2.0, 2.0), (HOUR, None)], 2.0, 0.0),
        ([(HOUR, HOUR), (60.0, 60.0)], 3.0, 2.0),
    ],
    ids=["a training in a pause", "long idle", "services", "an ended session of ours", "new or foreign", "two"],
)
def test_a_neighbour_in_a_pause_is_still_a_neighbour(monkeypatch, processes, load, cores):
    """A short look at the processors would miss it."""
    neighbours(monkeypatch, *processes, load=load)

    assert recent_busy_cores() == pytest.approx(cores, rel=0.01)


@pytest.mark.parametrize("lately", [0.0, 1.3])
def test_a_session_reports_cpu_contention_and_limits_spinning(monkeypatch, tmp_path, lately, said):
    """In the terminal where they do, in the trace's environment always; what began to import without knowing ends."""
    calls = []
    monkeypatch.setattr("tunecheck.session.recent_busy_cores", lambda: lately)
    monkeypatch.setattr(CpuContention, "busy_cores", lambda self: 0.0)
    for name in ("cool_down", "limit_openmp_spinning"):
        monkeypatch.setattr(f"tunecheck.core.fork_server.{name}", partial(calls.append, name))
    monkeypatch.setattr("tunecheck.core.fork_server.warm_up", lambda gpu: calls.append("warm_up"))
    monkeypatch.setenv("TUNECHECK_REPORTS", str(tmp_path))

    session = TierSession(command="pytest")
    session.warm_up([load_run(find_run("quick/smollm2-135m-qlora"), ["device=cpu"])])

    assert session._environment["others_busy_cores"] == lately
    assert calls == [*["cool_down", "limit_openmp_spinning"] * bool(lately), "warm_up"]
    assert said == ["CPU contention: 1.3 cores busy; GOMP_SPINCOUNT=1000 set"] * bool(lately)


def test_a_real_look_gives_numbers_that_can_be():
    """Whatever this machine does."""
    looking = CpuContention()

    assert 0.0 <= looking.busy_share() <= 1.0
    assert recent_busy_cores() >= 0.0


@pytest.mark.parametrize(("ranks", "seconds"), [("1", 3.0), ("2", 8.0)])
def test_the_other_ranks_of_a_training_are_not_others(monkeypatch, ranks, seconds):
    """torchrun's agent has them as children; one that has just ended counts as nothing."""

    def process(used, parent=None, children=()):
        return SimpleNamespace(cpu_times=used, parent=lambda: parent, children=lambda: children)

    def gone():
        raise psutil.NoSuchProcess(1)

    def used():
        return SimpleNamespace(user=2.0, system=1.0)

    siblings = [process(used), process(lambda: SimpleNamespace(user=5.0, system=0.0)), process(gone)]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    monkeypatch.setattr(psutil, "Process", lambda: process(used, process(used, children=siblings)))

    assert company._times(())[1] == seconds
