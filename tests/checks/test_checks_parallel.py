"""Checks that compare the processes of a training: each passes a healthy trace and fails a faulty one. Made-up."""

from __future__ import annotations

import dataclasses
import math

import pytest
from traces import BY_A_SCRIPT, STATE, healthy, opened, with_run

from tunecheck.checks import CHECKS
from tunecheck.core import evidence as e
from tunecheck.core.finding import Status
from tunecheck.core.trace import Attempt, Trace

NAMES = [name for name, check in CHECKS.items() if check.across_ranks]
STEPS = range(6)
ROWS = tuple(f"train:{number}" for number in range(24))
"""Of six steps with one row in each of four micro-batches: an epoch."""


OF_ONE_RANK = BY_A_SCRIPT | opened({"every_row_seen": "only its own rows"})
"""Premises of a process of a training that is not ours."""


def of_rank(rank, **changed):
    """The evidence of one healthy rank, with these kinds of records in place of the healthy ones."""
    main = healthy().main
    first, split = main.all(e.Window)[0], main.all(e.DataSplit)[0]
    records = {
        "Setup": main.all(e.Setup),
        "Step": main.all(e.Step),
        "Evaluation": main.all(e.Evaluation),
        "DataSplit": [dataclasses.replace(split, train_rows=len(ROWS))],
        "Replica": [replica(steps) for steps in range(7)],
        "Saved": [e.Saved(writers=(0,))],
        "TrainerState": [STATE],
        "Shard": [shard(step) for step in STEPS],
        "Pace": [pace(step) for step in STEPS],
        "RowsDrawn": [drawn(rank)],
        "OwnRowsGradient": [own_rows_gradient(rank)],
        "Joined": [e.Joined(waited_seconds=0.1)],
        "Window": [
            dataclasses.replace(
                first,
                step=step,
                rows=ROWS[4 * step : 4 * step + 4],
                digests=tuple(f"{step}{place}" for place in range(4)),
                random_state=f"{step} of rank {rank}",
            )
            for step in STEPS
        ],
    }
    return tuple(record for kind in {**records, **changed}.values() for record in kind)


def replica(steps, **tensors):
    """The digests of a model after so many steps."""
    each = {"lora_A": f"a{steps}", "lora_B": f"b{steps}", **tensors}
    return e.Replica(steps=steps, digest=str(sorted(each.items())), tensors=each)


def shard(step, **changed):
    """An even part of a model, its gradients and, after the first step, the optimizer's state."""
    held = {"parameters": 4000, "gradients": 40, **({"optimizer state": 80} if step else {})}
    return e.Shard(step=step, held={**held, **changed}, even=held)


def drawn(rank, *passes, **changed):
    """Each rank draws the other half of the rows, shuffled anew in each pass."""
    passes = passes or tuple(tuple(range(rank, len(ROWS), 2))[::step] for step in (5, -1, 1))
    passes = tuple(numbers + tuple(n for n in range(rank, len(ROWS), 2) if n not in numbers) for numbers in passes)
    return e.RowsDrawn(
        **{
            "columns": ("one",),
            "tokens_alone": False,
            "dataset_rows": len(ROWS),
            "batch": 2,
            "batches": 6,
            "passes": passes,
            **changed,
        }
    )


OWN = ((0.0, 4.0), (2.0, 0.0))
"""Sums of the gradients that the rows of two ranks give."""


def own_rows_gradient(rank, got=(1.0, 2.0), **changed):
    """Every rank gets the mean of both."""
    return e.OwnRowsGradient(**{"step": 0, "got": got, "own": (OWN[rank],), "tokens": 10 + 10 * rank, **changed})


def gradients(*got, **changed):
    """The ranks get these."""
    return trained(*(of_rank(rank, OwnRowsGradient=[own_rows_gradient(rank, got[rank], **changed)]) for rank in (0, 1)))


def pace(step, factor=1.0):
    """The first step pays for what is made once."""
    return e.Pace(step=step, seconds=factor * (0.01 if step else 0.1), tokens=100)


def slow(*factors):
    """Rank 1 takes so many times as long, step by step."""
    return trained(of_rank(0), of_rank(1, Pace=[pace(step, by) for step, by in enumerate(factors)]))


def trained(*ranks, again=None):
    """The trace of a training in two processes, and of one that goes on; what is not given is healthy."""
    probes = {"resume_from": STATE.step, "rescale_to": [1]}
    trace = with_run(healthy(), parallel={"engine": "ddp", "processes": 2}, probes=probes)
    first, second = (*ranks, *(of_rank(rank) for rank in range(len(ranks), 2)))
    main = trace.main
    return Trace(trace.header, (Attempt(main.start, first, main.end, {1: second}), again or rescaled()))


def rescaled(kind=None, at=0, outcome="finished", **changed):
    """One process goes on from the checkpoint of two, with one record of a kind changed."""
    main = healthy().main
    kept = [r for r in of_rank(0) if type(r) in (e.Step, e.Window, e.TrainerState) and r.step >= STATE.step]
    if kind is not None:
        place = [number for number, record in enumerate(kept) if type(record) is kind][at]
        kept[place] = dataclasses.replace(kept[place], **changed)
    start = dataclasses.replace(main.start, purpose=e.AttemptPurpose.RESCALE, changes={"parallel": None})
    return Attempt(start, tuple(kept), dataclasses.replace(main.end, outcome=outcome))


def changed(kind, at, rank=1, **values):
    """The same, with one record of this rank changed."""
    held = [record for record in of_rank(rank) if type(record).__name__ == kind]
    held[at] = dataclasses.replace(held[at], **values)
    other = of_rank(rank, **{kind: held})
    return trained(other) if rank == 0 else trained(of_rank(0), other)


def other_start():
    """Rank 1 begins with another A."""
    return trained(of_rank(0), of_rank(1, Replica=[replica(0, lora_A="other"), *map(replica, range(1, 7))]))


FAULTS = {
    "rows_trained_once": {
        ("a row twice", "epoch 0, step 0: train:0 on rank 1, earlier on rank 0"): lambda: changed(
            "Window", 0, rank=0, rows=("train:0", "train:0", "train:2", "train:3")
        ),
        ("a micro-batch too few", "step 2: 3 micro-batches, 4 configured"): lambda: changed(
            "Window", 2, rank=0, digests=("1", "2", "3")
        ),
    },
    "epochs_shuffled": {
        (
            "set_epoch is not called",
            "2 of 4 passes of all ranks draw the rows in the order of the pass before",
        ): lambda: trained(of_rank(0, RowsDrawn=[drawn(0, *[(8, 2, 6)] * 3)])),
    },
    "dropout_differs_by_rank": {
        ("one state", "step 2: rank 1 has the random state of rank 0"): lambda: changed(
            "Window", 2, random_state="2 of rank 0"
        ),
    },
    "gradients_averaged": {
        ("summed", "error 1 of the mean gradient of 2 ranks' own rows: 2.00 times, and the step has 2 "): lambda: (
            gradients(*[(2.0, 4.0)] * 2)
        ),
        ("divided twice", "error 0.476 of the mean gradient of 2 ranks' own rows: 1/2.00 of it, and"): lambda: (
            gradients(*[(0.5, 1.0)] * 2)
        ),
        ("not exchanged", "error 1 of the mean"): lambda: gradients(*OWN),
        ("clipped on each rank", "error 0.2"): lambda: gradients((1.0, 2.0), (1.0, 1.5)),
        ("no number", "error inf"): lambda: gradients((1.0, 2.0), (1.0, math.nan)),
    },
    "replicas_equal": {
        ("another start", "before the first step rank 1 differs from rank 0 in 1 of 2 tensors: lora_A"): other_start,
        ("a step", "after 4 steps rank 1 differs"): lambda: changed("Replica", 4, digest="other"),
    },
    "shards_even": {
        (
            "a module held whole",
            "rank 1 holds 6,120 bytes in step 5, an even shard has 4,120; more than",
        ): (lambda: changed("Shard", 5, held=shard(5, parameters=6000).held, larger=("norm",))),
    },
    "ranks_report_alike": {
        ("a loss", "step 3: loss 9 on rank 1"): lambda: changed("Step", 3, loss=9.0),
        ("a norm that is no number", "gradient_norm nan on rank 1"): lambda: changed("Step", 3, gradient_norm=math.nan),
        ("an evaluation", "before step 0: loss 9 on rank 1"): lambda: changed("Evaluation", 0, loss=9.0),
    },
    "saved_by_one_rank": {
        ("two writers", "ranks 0, 1 wrote"): lambda: changed("Saved", 0, writers=(0, 1)),
        ("no barrier", "saving returned on rank 1 before any rank had"): lambda: changed("Saved", 0, writers=()),
    },
    "ranks_keep_pace": {
        ("a slow rank", "rank 1 is the slowest: 4.00 times"): lambda: slow(1, 4, 4, 4, 4, 4),
        ("a time that is no number", "is the slowest: nan times"): lambda: slow(1, *[math.nan] * 5),
    },
    "rescale_equals": {
        ("the epoch anew", "from 2 processes to 1: step 3 has rows train:0, train:1, uninterrupted train:12"): (
            lambda: trained(again=rescaled(e.Window, rows=ROWS[:2], digests=("00", "01")))
        ),
        ("no optimizer state", "rank 0 starts with values that differ from the saved ones: "): lambda: trained(
            again=rescaled(e.TrainerState, tensors={})
        ),
        ("another rate", "to 1: step 4: loss "): lambda: trained(again=rescaled(e.Step, 1, learning_rate=1.0)),
        ("another loss", "to 1: step 5: loss 9.000000"): lambda: trained(again=rescaled(e.Step, 2, loss=9.0)),
        ("another gradient", "to 1: step 3: norm of the gradient 9, uninterrupted"): (
            lambda: trained(again=rescaled(e.Step, gradient_norm=9.0))
        ),
        ("no number", "to 1: step 5: loss nan"): lambda: trained(again=rescaled(e.Step, 2, loss=math.nan)),
        ("a step too few", "it took steps [4, 4, 5]..., not 3 to 5"): lambda: trained(again=rescaled(e.Step, step=4)),
    },
}
CASES = [(name, *fault) for name, faults in FAULTS.items() for fault in faults]


def test_every_check_across_ranks_is_here():
    """None that compares processes lacks its faults."""
    assert list(FAULTS) == sorted(FAULTS, key=NAMES.index)
    assert set(FAULTS) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_healthy_training_passes(name):
    """With the evidence of both ranks; without that of one it is unjudged, and the rank is named."""
    alone = trained()
    alone = Trace(alone.header, (dataclasses.replace(alone.main, of_ranks={}),))

    assert CHECKS[name]()(trained()).status is Status.PASSED
    assert CHECKS[name]()(alone).status is Status.UNJUDGED
    assert "rank 1 left no trace" in CHECKS[name]()(alone).detail


@pytest.mark.parametrize(("name", "fault", "words"), CASES)
def test_a_fault_fails(name, fault, words):
    """It says which rank, and where."""
    found = CHECKS[name]()(FAULTS[name][fault, words]())

    assert found.status is Status.FAILED
    assert words in found.detail


def test_a_rank_that_stopped_early_leaves_replicas_unjudged():
    """What it has is equal, but it is not all."""
    early = trained(of_rank(0), of_rank(1, Replica=[replica(0), replica(1)]))

    assert CHECKS["replicas_equal"]()(early).status is Status.UNJUDGED


@pytest.mark.parametrize("name", ["replicas_equal", "ranks_report_alike"])
def test_replicas_that_become_equal_again_may_be_averaged_now_and_then(name):
    """Local SGD, where a script says so; a run of the suite never does."""
    replicas = [replica(at, **({"digest": "other"} if at == 4 else {})) for at in range(7)]
    steps = [record for record in of_rank(1) if type(record) is e.Step]
    steps[4] = dataclasses.replace(steps[4], gradient_norm=9.0)
    local = trained(of_rank(0), of_rank(1, Replica=replicas, Step=steps))
    found = CHECKS[name]()(with_run(local, premises=BY_A_SCRIPT))

    assert found.status is Status.UNJUDGED
    assert "differ after 4 steps and are equal after 5" in found.detail
    assert CHECKS[name]()(local).status is Status.FAILED


def test_a_rank_that_is_slow_now_and_then_keeps_pace():
    """Another process took its core; the first step is not counted. It is named all the same."""
    found = CHECKS["ranks_keep_pace"]()(slow(50, 9, 1.2, 1.2, 1.2, 9))

    assert found.status is Status.PASSED
    assert found.detail == "rank 1 is the slowest: 1.20 times the time per token of the others"


def test_a_rank_that_started_late_is_named():
    """It waited less than the others."""
    late = trained(of_rank(0, Joined=[e.Joined(waited_seconds=12.3)]))

    assert CHECKS["ranks_keep_pace"]()(late).detail.endswith("; rank 1 started 12 s after the first")


def test_few_steps_tell_no_pace():
    """Nothing is missing from such a run."""
    found = CHECKS["ranks_keep_pace"]()(slow(1, 9, 9))

    assert (found.status, found.expected) == (Status.UNJUDGED, True)


def test_shards_before_the_optimizer_has_its_state_are_unjudged():
    """They are not all that a rank holds."""
    early = trained(of_rank(0, Shard=[shard(0)]), of_rank(1, Shard=[shard(0)]))

    assert CHECKS["shards_even"]()(early).status is Status.UNJUDGED


def test_any_other_check_is_asked_of_every_rank():
    """A failure on one is a failure, and it is named."""
    check = CHECKS["saved_by_one_rank"]
    assert check.across_ranks

    found = CHECKS["heldout_is_disjoint"]()(changed("DataSplit", 0, shared=("a question",)))

    assert found.status is Status.FAILED
    assert found.detail.startswith("rank 1: 1 held-out rows are in training")
    assert CHECKS["heldout_is_disjoint"]()(trained()).detail.startswith("24 training rows")


def test_other_masks_are_no_other_training():
    """With dropout another number of processes draws others, so that losses are not compared; the rest is."""
    check, other = CHECKS["rescale_equals"](), trained(again=rescaled(e.Step, loss=9.0))
    dropping = with_run(other, features=[*other.run.features, "dropout"])

    assert check(other).status is Status.FAILED
    assert check(dropping).status is Status.PASSED
    assert (
        check(with_run(trained(again=rescaled(e.TrainerState, tensors={})), features=["dropout"])).status
        is Status.FAILED
    )


FOUR = dataclasses.replace(rescaled().start, changes={"parallel": {"engine": "ddp", "processes": 4}})


@pytest.mark.parametrize(
    ("again", "words"),
    [
        (rescaled(outcome="failed"), "1 processes did not finish after the resume: it failed"),
        (
            dataclasses.replace(rescaled(), records=rescaled().records[:3]),
            "rank 0 of 1 did not record its resumed state",
        ),
        (dataclasses.replace(rescaled(), start=FOUR), "no attempt of 1 processes resumed from the checkpoint"),
    ],
    ids=["not finished", "nothing recorded", "not made"],
)
def test_a_number_of_processes_that_did_not_go_on_is_unjudged(again, words):
    """And said."""
    found = CHECKS["rescale_equals"]()(trained(again=again))

    assert (found.status, found.expected) == (Status.UNJUDGED, False)
    assert words in found.detail


@pytest.mark.parametrize(("exchanged", "status"), [(0, Status.FAILED), (3, Status.UNJUDGED), (None, Status.UNJUDGED)])
def test_an_own_module_that_begins_differently_may_be_a_part_of_a_model(exchanged, status):
    """As far as its processes exchange anything in the steps; those that do not train alone."""

    def counted(held):
        count = (lambda steps: None) if exchanged is None else (lambda steps: exchanged * steps)
        return [dataclasses.replace(seen, exchanges=count(seen.steps)) for seen in held]

    first, *later = map(replica, range(7))
    ranks = [
        of_rank(rank, Replica=counted([start, *later])) for rank, start in enumerate((first, replica(0, lora_A="b")))
    ]
    trace = with_run(trained(*ranks), premises=opened({"causal_lm": "only its own code knows the rows of an MLP"}))

    assert CHECKS["replicas_equal"]()(trace).status is status


def test_an_own_module_that_drifts_apart_is_named():
    """Whatever is exchanged: its gradients are not averaged."""
    trace = with_run(
        changed("Replica", 4, digest="other", exchanges=9),
        premises=opened({"causal_lm": "known to its own code alone"}),
    )
    assert CHECKS["replicas_equal"]()(trace).status is Status.FAILED


@pytest.mark.parametrize(
    ("got", "changed"),
    [((4 / 3, 4 / 3), {}), ((7.0, 7.0), {"own": ((9.0, 9.0), (7.0, 7.0))})],
    ids=["by the tokens", "of the mean of micro-batches' means"],
)
def test_every_mean_of_the_ranks_own_gradients_is_one(got, changed):
    """By ranks or by tokens, within a rank by tokens or by micro-batches."""
    assert CHECKS["gradients_averaged"]()(gradients(got, got, **changed)).passed


def test_a_gradient_that_another_premise_needs_is_unjudged():
    """On whichever rank that was seen; with dropout in a loop there is none at all."""
    clipped = e.PremisesOpen(reasons={"gradient_summed": "gradients are clipped within a window"})
    found = CHECKS["gradients_averaged"]()(trained(of_rank(0), of_rank(1, PremisesOpen=[clipped])))
    none = CHECKS["gradients_averaged"]()(trained(*(of_rank(rank, OwnRowsGradient=[]) for rank in (0, 1))))

    assert (found.detail, found.expected) == ("rank 1: gradients are clipped within a window", True)
    assert (none.status, none.expected) == (Status.UNJUDGED, True)


def test_rows_in_their_own_order_are_not_shuffled():
    """Nor is one pass compared with anything, nor a look at some rows with the epoch that begins with them."""
    sequential = drawn(0, passes=(tuple(range(0, 24, 2)),) * 2)
    order = (*range(1, 24, 2), *range(0, 24, 2))
    for seen in (sequential, drawn(0, (8, 2, 6)), drawn(0, passes=(order[:8], order))):
        found = CHECKS["epochs_shuffled"]()(trained(*(of_rank(rank, RowsDrawn=[seen]) for rank in (0, 1))))
        assert (found.status, found.expected) == (Status.UNJUDGED, True)


def test_a_wrapped_module_is_no_part_of_a_model():
    """DistributedDataParallel has every rank begin alike, whatever is exchanged."""
    first, *later = [dataclasses.replace(replica(step), wrapped=True, exchanges=3 * step) for step in range(7)]
    other = dataclasses.replace(first, digest="other")
    ranks = [of_rank(rank, Replica=[start, *later]) for rank, start in enumerate((first, other))]
    trace = with_run(trained(*ranks), premises=opened({"causal_lm": "known to its own code alone"}))

    assert CHECKS["replicas_equal"]()(trace).status is Status.FAILED
    assert CHECKS["ranks_report_alike"]()(trace).expected


def test_a_rank_that_takes_no_step_is_named():
    """Where the others train."""
    trace = trained(of_rank(0), of_rank(1, Step=[]))
    found = CHECKS["replicas_equal"]()(with_run(trace, premises=OF_ONE_RANK))

    assert found.status is Status.FAILED
    assert found.detail == "rank 1 took no step of the optimizer, another 6"


def test_gradients_that_each_rank_clips_before_the_exchange_are_named():
    """By what clipping leaves, which the norm of the exchanged gradient does not show."""
    calls = [e.CallOrder(step=0, calls=("forward",), clip_scale=scale) for scale in (0.5, 0.7)]
    trace = trained(*(of_rank(rank, CallOrder=[calls[rank]]) for rank in (0, 1)))
    found = CHECKS["ranks_report_alike"]()(with_run(trace, premises=OF_ONE_RANK))

    assert found.status is Status.FAILED
    assert "step 0: share left by clipping 0.7 on rank 1, 0.5 on rank 0" in found.detail
