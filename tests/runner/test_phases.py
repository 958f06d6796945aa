"""Phases of an attempt: the training's memory is told from the probes', with a made-up allocator where a GPU's is."""

from __future__ import annotations

import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tunecheck.core.evidence import Phase, ProbeTimes
from tunecheck.probes.resources import sampled_steps
from tunecheck.runner.child import Phases, _in_phases
from tunecheck.training.events import Probe, Probes
from tunecheck.training.ranks import Exchange

CUDA, CPU = SimpleNamespace(type="cuda"), SimpleNamespace(type="cpu")


class Allocator:
    """torch.cuda's bookkeeping as far as the phases read it."""

    def __init__(self) -> None:
        self.now, self.peak, self.retries, self.ooms = 100, 100, 5, 0

    def take(self, size: int) -> None:
        """Allocate and free again."""
        self.peak = max(self.peak, self.now + size)

    def synchronize(self, device: Any) -> None:
        """Nothing is pending."""

    def reset_peak_memory_stats(self, device: Any) -> None:
        """The peak is what is there."""
        self.peak = self.now

    def memory_stats_as_nested_dict(self, device: Any) -> dict[str, Any]:
        """As torch's: requested a little less, reserved a little more."""
        peaks = {"allocated": self.peak, "requested": self.peak - 1, "reserved": self.peak + 10}
        nested = {f"{name}_bytes": {"all": {"peak": peak}} for name, peak in peaks.items()}
        return {**nested, "num_alloc_retries": self.retries, "num_ooms": self.ooms}


def test_the_probes_peak_is_not_the_trainings() -> None:
    """However often they come; what the allocator reserves for them stays in the figure of the card."""
    memory, written = Allocator(), []
    phases = Phases(CUDA, written.append, memory)
    with phases.phase("steady"):
        memory.take(50)
        with phases.aside():
            memory.take(400)
        memory.take(70)
        with phases.aside():
            memory.take(300)
        memory.retries += 2
    [seen] = written
    assert (seen.name, seen.peak_allocated_bytes, seen.peak_requested_bytes) == ("steady", 170, 169)
    assert (seen.probes_peak_allocated_bytes, seen.peak_reserved_bytes) == (500, 510)
    assert (seen.allocation_retries, seen.out_of_memory_count) == (2, 0)
    assert seen.started_at is not None
    assert seen.process_bytes > 0


def test_a_phase_does_not_inherit_the_one_before() -> None:
    """Each begins with what is there."""
    memory, written = Allocator(), []
    phases = Phases(CUDA, written.append, memory)
    with phases.phase("load"):
        memory.take(1000)
    with phases.phase("first step"):
        memory.take(10)
    assert [seen.peak_allocated_bytes for seen in written] == [1100, 110]
    assert written[1].probes_peak_allocated_bytes is None


def test_running_out_of_memory_leaves_the_phase_in_the_trace() -> None:
    """With its count; after any other error the device may not answer, so nothing is asked."""
    memory, written = Allocator(), []
    phases = Phases(CUDA, written.append, memory)

    def run_out() -> None:
        memory.ooms += 1
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError), phases.phase("steady"):
        run_out()
    assert (written[0].name, written[0].out_of_memory_count) == ("steady", 1)
    with pytest.raises(RuntimeError, match="illegal"), phases.phase("steady"):
        raise RuntimeError("an illegal memory access")
    assert len(written) == 1


def test_on_the_cpu_only_time_and_the_process_are_told() -> None:
    """No allocator to ask."""
    written: list[Phase] = []
    phases = Phases(CPU, written.append)
    with phases.phase("steady"), phases.aside():
        pass
    assert (written[0].peak_allocated_bytes, written[0].allocation_retries) == (None, None)
    assert written[0].process_bytes


def test_probes_work_aside_only_where_asked() -> None:
    """And a dispatcher without probes costs nothing."""
    entered: list[str] = []

    class Context:
        def __enter__(self) -> None:
            entered.append("in")

        def __exit__(self, *error: object) -> None:
            entered.append("out")

    session: Any = SimpleNamespace(device=CPU, exchange=Exchange(), seen_whole=nullcontext)
    probes, none = Probes([Probe], lambda *records: None), Probes((), lambda *records: None)
    probes.evaluate(session, 0)
    probes.aside = none.aside = Context
    probes.evaluate(session, 1)
    none.evaluate(session, 1)
    assert entered == ["in", "out"]


def test_what_each_probe_took_is_told_at_the_end() -> None:
    """All its moments together, one that failed up to there, and without probes nothing."""

    class Slow(Probe):
        def start(self, session: Any) -> None:
            time.sleep(0.02)

        def end(self, session: Any) -> None:
            time.sleep(0.02)

    class Failing(Probe):
        emits = ()

        def start(self, session: Any) -> None:
            raise ValueError

    told: list[Any] = []
    session: Any = SimpleNamespace(device=CPU, exchange=Exchange(), seen_whole=nullcontext)
    for kinds in ((Slow, Failing), ()):
        probes = Probes(kinds, told.append)
        probes.start(session)
        probes.end(session)

    (cost,) = (record.seconds for record in told if isinstance(record, ProbeTimes))
    assert cost["Slow"] >= 0.04 > cost["Failing"] >= 0


@pytest.mark.parametrize(
    ("max_steps", "checkpoint", "wanted"),
    [
        (1, None, [("first step", 1)]),
        (10, None, [("first step", 1), ("steady", 10)]),
        (10, 1, [("first step", 1), ("steady", 10)]),
        (10, 6, [("first step", 1), ("steady", 6), ("steady", 10)]),
        (10, 10, [("first step", 1), ("steady", 10)]),
    ],
)
def test_phases_follow_a_trainer_that_is_called_once(max_steps: int, checkpoint: int | None, wanted: list[Any]) -> None:
    """Each ends with its last step, what is due between two is done between them, and none is open afterwards."""
    written: list[Phase] = []
    between: list[int] = []
    probes = Probes((), lambda *records: None)
    session: Any = SimpleNamespace(device=CPU, exchange=Exchange(), seen_whole=nullcontext)
    with _in_phases(Phases(CPU, written.append), max_steps, checkpoint, between.append) as probes.after_step:
        for step in range(max_steps):
            probes.step_end(session, step, applied=True)

    assert list(zip([phase.name for phase in written], between, strict=True)) == wanted


def test_live_tensors_are_sampled_for_a_trend_in_long_runs_alone() -> None:
    """Two counts in a short run, since each takes time."""
    assert sampled_steps(10) == {3, 9}
    assert sorted(sampled_steps(50)) == [3, 20, 23, 26, 30, 33, 36, 39, 43, 46, 49]
    assert (len(sampled_steps(1000)), max(sampled_steps(1000))) == (11, 999)
