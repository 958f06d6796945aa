"""Two processes as they are made on two GPUs, on the CPU: spawned, since each must choose its card before importing."""

from __future__ import annotations

import multiprocessing
from typing import Any

import tiny
from rehearsing import slow

from tunecheck import runner as runner_module
from tunecheck.config import find_run, load_run
from tunecheck.core.evidence import Replica, Step
from tunecheck.runner import Runner, ranks
from tunecheck.runner.outcome import Outcome
from tunecheck.runner.request import Request

TWO = [*tiny.TRAINED, "parallel={processes: 2}", "training.max_steps=3", "probes.oracle_steps=[0]"]


def in_ranks(request: Request, **options: Any) -> Outcome:
    """Start the ranks from this process, so that how they are made can be told it."""
    _, sender = multiprocessing.Pipe(duplex=False)
    return ranks.train_in_ranks(request, sender)


@slow
def test_spawned_ranks_train_as_forked_ones_do(tmp_path, monkeypatch):
    """In bf16 and fp32 alike: the same losses and weights, to the last bit."""
    run = load_run(find_run("quick/smollm2-135m-qlora"), TWO)
    forked = Runner(folder=tmp_path / "forked", environment={}, gpu=False).execute(run)
    for library in ("GLOO", "NCCL"):
        monkeypatch.setenv(f"{library}_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(runner_module, "run_child", in_ranks)
    monkeypatch.setitem(ranks.START_METHODS, "cpu", "spawn")
    spawned = Runner(folder=tmp_path / "spawned", environment={}, gpu=False).execute(run)

    assert spawned.main.ending == forked.main.ending == "finished"
    for rank in (0, 1):
        ours, theirs = spawned.of_rank(rank), forked.of_rank(rank)
        assert [step.loss for step in ours.all(Step)] == [step.loss for step in theirs.all(Step)]
        assert ours.all(Replica) == theirs.all(Replica)
