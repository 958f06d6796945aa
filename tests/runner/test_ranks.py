"""Attempts in several processes: each rank leaves its evidence, and one that fails or does not come is named."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpuless
import injected
import psutil
import pytest
import tiny
from fake_machine import CARD, SECOND, machine
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from benchmarks.detection.bugs import BUGS
from tunecheck import runner as runner_module
from tunecheck.config import find_run, load_run
from tunecheck.core.errors import ConfigError
from tunecheck.core.evidence import (
    AttemptCause,
    AttemptOutcome,
    AttemptPurpose,
    ProbeFailed,
    Replica,
    Step,
    Telemetry,
    Window,
)
from tunecheck.core.finding import Status
from tunecheck.core.trace import encode, read
from tunecheck.runner import Runner, ranks
from tunecheck.runner.outcome import Outcome
from tunecheck.runner.request import Request
from tunecheck.session.admission import obstacle
from tunecheck.training.checkpoint import _require_same_rows

QUICK = "quick/smollm2-135m-qlora"
TWO = [*tiny.TRAINED, "parallel={processes: 2}", "training.max_steps=3", "probes.oracle_steps=[0]"]


def execute(folder, *settings, fault=None, **options):
    """The trace of the tiny quick run in two processes."""
    run = load_run(find_run(QUICK), [*TWO, *settings])
    runner = Runner(folder=folder, environment={}, gpu=False, faults=(fault,) if fault else (), **options)
    return run, runner.execute(run)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """A run with dropout, odd rows to evaluate, and a resume in two processes."""
    odd = ["evaluation.rows=3", "lora.dropout=0.1", "probes.resume_from=2"]
    return execute(tmp_path_factory.mktemp("ranks"), *odd)


def test_a_healthy_run_passes_every_check(healthy):
    """Those of several processes too, and none lacks evidence."""
    run, trace = healthy
    findings = [check(trace) for check in run.resolved_checks().values()]

    assert [attempt.ending for attempt in trace.attempts] == ["finished", "finished"]
    assert [f for f in findings if not f.passed and not f.expected] == []
    across = {f.check for f in findings if f.passed}
    assert {"replicas_equal", "rows_trained_once", "ranks_report_alike", "dropout_differs_by_rank"} <= across
    assert "saved_by_one_rank" in across


def test_every_rank_leaves_the_same_kinds_of_evidence(healthy):
    """In one file, each line with its rank; a resume's too."""
    _, trace = healthy

    assert trace.ranks == [0, 1]
    assert trace.main.all(ProbeFailed) == trace.of_rank(1).main.all(ProbeFailed) == []
    for attempt in trace.attempts:
        kinds = [[type(record) for record in attempt.of_rank(rank).records] for rank in (0, 1)]
        assert kinds[0] == kinds[1]
    assert len(trace.of_rank(1).all(Replica)) == 4
    assert trace.of_rank(1).last(AttemptPurpose.RESUME).all(Step)


def test_two_processes_take_the_rows_of_twice_the_accumulation(healthy):
    """Which makes a run of one process comparable."""
    _, trace = healthy

    assert [len(window.digests) for window in trace.all(Window)] == [4, 4, 4]
    assert trace.run.rows_per_step == 8


def test_a_rank_that_is_killed_is_named(tmp_path):
    """Not the one that lost its connection; what both wrote before stays, and no process does."""
    _, trace = execute(tmp_path, fault=injected.rank_1_killed)

    assert trace.main.outcome == "crashed"
    assert trace.main.end.detail.startswith("rank 1: killed by SIGKILL")
    assert len(trace.main.all(Step)) == len(trace.of_rank(1).main.all(Step)) == 1
    assert not [p for p in psutil.Process().children(recursive=True) if p.status() == psutil.STATUS_STOPPED]


def test_a_rank_that_does_not_come_is_named_at_the_deadline(tmp_path):
    """Stopped, so that not even its stack can be asked for."""
    _, trace = execute(tmp_path, "deadline=20s", fault=injected.rank_1_stopped)

    assert trace.main.outcome == "hung"
    assert "rank 1 did not answer: it is stopped" in trace.main.end.detail
    assert trace.main.end.detail.endswith("while rank 0 waited for it")
    assert trace.main.end.seconds < 35


def test_a_bug_of_one_rank_is_named(tmp_path):
    """Dropout in eval mode on rank 1 alone changes nothing that rank 0 sees."""
    run, trace = execute(tmp_path, "lora.dropout=0.1", fault=BUGS["D28"])
    failed = {
        f.check: f.detail
        for f in (check(trace) for check in run.resolved_checks().values())
        if f.status is Status.FAILED
    }

    assert failed["state_in_training"].startswith("rank 1: ")


@pytest.mark.parametrize("seen", [(0,), (0, 1)])
def test_a_rank_that_failed_is_named_though_the_agent_saw_its_victim_first(tmp_path, monkeypatch, seen):
    """The victim's error came first or in the same look of the agent; the other rank left why it failed."""
    details = ("RuntimeError: [gloo/pair.cc:544] Connection closed by peer", "ValueError: the shapes do not fit")
    request: Any = SimpleNamespace(run=SimpleNamespace(id="x", processes=2), device="cpu", checkpoint=tmp_path / "c")
    for rank, detail in enumerate(details):
        held = pickle.dumps(Outcome(AttemptOutcome.FAILED, detail, AttemptCause.ERROR))
        ranks._beside(request, rank, "outcome").write_bytes(held)

    def launch(*asked):
        failures = {rank: ProcessFailure(local_rank=rank, pid=1, exitcode=1, error_file="none") for rank in seen}
        raise ChildFailedError("ranks", failures)

    monkeypatch.setattr("torch.distributed.launcher.api.elastic_launch", lambda *config: launch)
    outcome = ranks.train_in_ranks(request, SimpleNamespace())

    assert outcome.detail == "rank 1: ValueError: the shapes do not fit"


def stacks(folder, **frames):
    """A request for two ranks whose processes are gone, and which left these stacks."""
    for rank, lines in frames.items():
        text = "".join(f'  File "{file}", line {number} in {name}\n' for file, number, name in lines)
        (folder / f"rank-{rank[-1]}.stack").write_text(f"{2**22 + 1}\nCurrent thread (most recent call first):\n{text}")
    return SimpleNamespace(run=SimpleNamespace(parallel=SimpleNamespace(processes=2)), checkpoint=folder / "checkpoint")


COLLECTIVE = ("/x/site-packages/torch/distributed/distributed_c10d.py", 2900, "all_reduce")
LOOP = ("/project/suite/tunecheck/training/native.py", 88, "train")


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        (
            {"rank0": [COLLECTIVE, LOOP], "rank1": [LOOP]},
            "; rank 1 was at training/native.py, line 88 in train, while rank 0 waited for it",
        ),
        (
            {"rank0": [COLLECTIVE, LOOP], "rank1": []},
            "; rank 1 did not answer: it is stopped, or stuck outside of Python",
        ),
        ({"rank0": [COLLECTIVE, LOOP]}, "; rank 1 had not begun, while rank 0 waited for it"),
        (
            {"rank0": [COLLECTIVE, LOOP], "rank1": [COLLECTIVE, LOOP]},
            "; every rank waits for the others: rank 0 was at",
        ),
    ],
)
def test_who_is_waited_for_is_told_by_the_stacks(tmp_path, monkeypatch, frames, words):
    """A rank in a collective is a consequence; when all are in one, nobody is blamed."""
    monkeypatch.setattr(ranks, "STACK_SECONDS", 0)

    assert ranks.hanging(stacks(tmp_path, **frames)).startswith(words)


@pytest.mark.parametrize("outcome", ["misconfigured", "unavailable"])
def test_what_is_wrong_with_the_run_is_no_ranks_fault(outcome):
    """The message stays as a run in one process has it."""
    assert ranks._of_rank(1, Outcome(outcome, "data.max_length: should be at least 126")).detail.startswith("data.max")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("trainer=trl", "trainer: should be native or transformers in several processes (got trl)"),
        (
            "fallback=[lean, cpu]",
            "cpu or none with section parallel: the other steps are those of one process (got lean)",
        ),
        ("training.loss_chunk_tokens=20", "should be null with section parallel: chunks never call the whole model"),
        ("parallel={processes: 1}", "parallel.processes: should be greater than or equal to 2 (got 1)"),
        ("parallel={processes: 2, engine: horovod}", "parallel.engine: should be 'ddp'"),
        ("probes.rescale_to=[1]", "needs probes.resume_from: the checkpoint that they go on from (got 1)"),
        (
            "probes={resume_from: 2, rescale_to: [1, 2]}",
            "should not hold the run's own number, by which probes.resume_from is resumed (got 2)",
        ),
        (
            "probes={resume_from: 2, rescale_to: [3]}",
            "should divide the 4 micro-batches of a step, which all processes share (got 3)",
        ),
        ("probes.rescale_to=[0]", "probes.rescale_to.0: should be greater than or equal to 1 (got 0)"),
    ],
)
def test_what_cannot_be_combined_is_a_usage_error(setting, words):
    """With the way out."""
    with pytest.raises(ConfigError) as error:
        load_run(find_run(QUICK), [*TWO, setting])

    assert any(words in problem for problem in error.value.problems), error.value.problems


def test_transformers_trains_in_two_processes(tmp_path):
    """By accelerate's DDP: rows, averages, masks, evaluation and files are those of all ranks."""
    settings = ["trainer=transformers", "lora.dropout=0.1", "evaluation.rows=4", "evaluation.batch_size=2"]
    run, trace = execute(tmp_path, *settings)
    findings = [check(trace) for check in run.resolved_checks().values()]

    assert [attempt.ending for attempt in trace.attempts] == ["finished"]
    assert [str(f) for f in findings if not f.passed and not f.expected] == []
    assert len(trace.of_rank(1).all(Replica)) == 4


def test_ranks_evaluate_where_they_train():
    """On the CPU they are forked, after which CUDA cannot be used."""
    with pytest.raises(ConfigError, match=r"evaluation\.device: should be training with section parallel"):
        load_run(find_run(QUICK), [*TWO, "strategy=lora", "quantization=null", "evaluation.device=cuda"])


def test_a_run_in_one_process_may_be_rescaled_to_several():
    """Under the rules of those."""
    one = [*tiny.TRAINED, "probes.resume_from=2"]

    assert load_run(find_run(QUICK), [*one, "probes.rescale_to=[2]"]).resolved_checks()["rescale_equals"]
    with pytest.raises(ConfigError, match=r"cpu or none with probes\.rescale_to: the other steps are"):
        load_run(find_run(QUICK), [*one, "fallback=[lean]", "probes.rescale_to=[2]"])


def test_steps_of_other_rows_do_not_go_on_from_a_checkpoint():
    """They would leave rows out, or take them twice."""
    run = load_run(find_run(QUICK), TWO)
    session: Any = SimpleNamespace(run=run, batches=SimpleNamespace(rows_per_step=6))

    with pytest.raises(
        ConfigError, match="should be such that 2 processes take 8 rows a step, as before the checkpoint"
    ):
        _require_same_rows(session, {"step": 3, "rows": 24})


@pytest.mark.parametrize(
    ("cards", "why"),
    [((), None), ((CARD,), "needs 2 GPUs, one for each process; this machine shows 1"), ((CARD, SECOND), None)],
    ids=["no card", "one", "two"],
)
def test_the_shipped_run_of_two_processes_takes_two_cards_or_none(cards, why):
    """It is part of a night on two GPUs and on none; beside a single one it is skipped unless the CPU is asked for."""
    shipped = find_run("extended/smollm2-135m-parallel")

    assert obstacle(load_run(shipped), machine(*cards)) == why
    assert obstacle(load_run(shipped, ["device=cpu"]), machine(*cards)) is None


def test_each_rank_has_a_card_of_its_own_and_a_process_alone_one(tmp_path, monkeypatch):
    """What was seen of each card is that rank's evidence; the process that starts them takes none."""
    asked: list[Request] = []
    watched: list[str] = []

    class Meter(gpuless.Meter):
        def watch(self, process_id: int) -> None:
            watched.append(self._card)

    def run_child(request: Request, *, started: Any, **options: Any) -> Outcome:
        asked.append(request)
        started(4242)
        return Outcome(AttemptOutcome.FINISHED)

    monkeypatch.setattr(runner_module, "run_child", run_child)
    monkeypatch.setattr(runner_module, "Meter", Meter)
    settings = ("device=auto", "probes={resume_from: 2, rescale_to: [1], read_back: true}")
    run = load_run(find_run(QUICK), [*TWO, *settings])
    trace = Runner(folder=tmp_path, environment={}, gpu=True, cards=("GPU-1", "GPU-2")).execute(run)

    both = ("GPU-1", "GPU-2")
    assert [(request.purpose, request.cards) for request in asked] == [
        ("train", both),
        ("resume", both),
        ("rescale", both[:1]),
        ("read back", both[:1]),
    ]
    assert watched == [*both, *both, "GPU-1", "GPU-1"]
    assert trace.main.start.card == "GPU-1, GPU-2"
    assert [trace.main.of_rank(rank).all(Telemetry)[0].uuid for rank in trace.ranks] == [*both]


def test_in_process_is_refused(tmp_path):
    """A debugger's process is one."""
    _, trace = execute(tmp_path, in_process=True)

    assert "--in-process trains in one process" in trace.main.end.detail


def test_half_a_line_of_a_killed_rank_is_dropped(tmp_path, healthy):
    """What the others wrote is read."""
    _, trace = healthy
    step = trace.main.all(Step)[0]
    whole: list[Any] = [trace.header, trace.main.start, step]
    path = Path(tmp_path / "trace.jsonl")
    lines = [*(encode(record) for record in whole), encode(step, 1), encode(step, 2)]
    path.write_text("\n".join(itertools.chain(lines, [encode(step, 1)[:40]])))

    assert read(path).main.of_ranks == {1: (step,), 2: (step,)}
