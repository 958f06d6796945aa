"""Traces of several processes of one command become one, where all were heard to the same end."""

from __future__ import annotations

import dataclasses

import pytest
from process_traces import ROWS, heard
from traces import BY_A_LOOP, healthy, opened, with_run

from tunecheck.checks import CHECKS
from tunecheck.core import evidence as e
from tunecheck.core.finding import Status
from tunecheck.core.trace import TraceWriter, read
from tunecheck.listen.launch import merge_ranks
from tunecheck.listen.options import trace_file
from tunecheck.results.rejudge import judged_again


def merged(folder, **second):
    """Return the one trace of two processes, the second of which may differ."""
    heard(folder, 0, dataset_rows=second.get("dataset_rows", 12), also=second.pop("also_first", ()))
    merge_ranks(heard(folder, 1, **second))
    (file,) = folder.glob("watch-*")
    return read(file)


def append(trace, record):
    """Write this record behind the end of a trace, as an attempt of its own, as a listener does."""
    end = e.AttemptEnd(outcome=e.AttemptOutcome.FINISHED, detail="", seconds=1.0)
    TraceWriter(trace).write(e.AttemptStart(purpose=e.AttemptPurpose.READ_BACK, device="cpu"), record, end)


def test_two_processes_are_one_training(tmp_path):
    """Judged by the checks of several processes; what each leaves unjudged stays so."""
    trace = merged(tmp_path)

    assert trace.ranks == [0, 1]
    assert "parallel" in trace.run.features
    assert trace.run.processes == 2
    assert trace.of_rank(1).facts["every_row_seen"].where == "only its own rows"
    for name in ("rows_trained_once", "ranks_report_alike"):
        assert CHECKS[name]()(trace).status is Status.PASSED


@pytest.mark.parametrize(
    ("name", "second", "words"),
    [
        ("rows_trained_once", {"rows": ROWS[:6]}, "the same 6 rows as rank 0, in the same order"),
        ("rows_trained_once", {"rows": ROWS[:6], "dataset_rows": None}, "the same 6 rows as rank 0"),
        ("rows_trained_once", {"rows": ROWS[1:7]}, "5 of 6 rows of rank 1 are rank 0's too"),
        ("ranks_report_alike", {"learning_rate": 9.0}, "learning_rate 9 on rank 1"),
    ],
)
def test_what_the_processes_do_not_share_is_named(tmp_path, name, second, words):
    """Although each of them is healthy by itself."""
    found = CHECKS[name]()(merged(tmp_path, **second))

    assert found.status is Status.FAILED
    assert words in found.detail


def drawn(*passes, **changed):
    """The rows that a loader of one process has drawn."""
    seen = {
        "columns": ("one", "two"),
        "tokens_alone": False,
        "dataset_rows": 40,
        "batch": 4,
        "batches": 5,
        "passes": passes,
        **changed,
    }
    return [e.RowsDrawn(**seen)]


EVEN, ODD = tuple(range(0, 12, 2)), tuple(range(1, 12, 2))


@pytest.mark.parametrize(
    ("first", "second", "status", "words"),
    [
        (drawn(EVEN), drawn(ODD), Status.PASSED, "0 of 12 rows of the first pass"),
        (drawn(EVEN), drawn((1, 0, 5, 4)), Status.FAILED, "2 of 10 rows of the first pass are drawn by two ranks"),
        (drawn(EVEN, batches=10), drawn(ODD, batches=10), Status.SUSPECTED, "each of 2 ranks draws 40 of 40 rows"),
        (drawn(EVEN), drawn(ODD, columns=("other",)), Status.FAILED, "each rank's data set holds others"),
        (
            drawn(EVEN, tokens_alone=True),
            drawn(ODD, columns=("other",), tokens_alone=True),
            Status.SUSPECTED,
            "each rank's data set holds others",
        ),
        (drawn(EVEN), drawn(ODD, columns=("one", "other")), Status.SUSPECTED, "each rank's data set holds others"),
        (drawn(EVEN), drawn(ODD, dataset_rows=30), Status.SUSPECTED, "the ranks' data sets have 40, 30 rows"),
        # a sampler fills the last batches with the first rows
        (
            drawn((0, 2, 4), dataset_rows=5, batch=1, batches=3),
            drawn((1, 3, 0), dataset_rows=5, batch=1, batches=3),
            Status.PASSED,
            "1 of 6",
        ),
        # each rank has a part of its own, whose rows have the same numbers
        (drawn(EVEN, batches=10), drawn(EVEN, batches=10, columns=("other",)), Status.PASSED, "0 of 6 rows of rank 1"),
        (drawn(EVEN), drawn(EVEN, dataset_rows=41), Status.PASSED, "0 of 6 rows of rank 1"),
        (drawn(EVEN, columns=()), drawn(ODD, columns=()), Status.PASSED, "0 of 6 rows of rank 1"),
        (drawn((1, 2) * 9), drawn((1, 2) * 9), Status.PASSED, "0 of 6 rows of rank 1"),
        (drawn(()), drawn(()), Status.PASSED, "0 of 6 rows of rank 1"),
    ],
)
def test_loaders_are_judged_by_the_numbers_that_they_draw(tmp_path, first, second, status, words):
    """Of one data set no number comes twice in a pass, but what fills the last batches."""
    found = CHECKS["rows_trained_once"]()(merged(tmp_path, also_first=first, also=second))

    assert (found.status, bool(found.meant)) == (status, status is Status.SUSPECTED)
    assert words in found.detail


@pytest.mark.parametrize(("shared", "status"), [(9, Status.UNJUDGED), (10, Status.SUSPECTED)])
def test_rows_that_two_shuffles_share_are_suspected(tmp_path, shared, status):
    """Of a data set of unknown size, where none comes again within a process: by chance once in 1024 times."""
    own = [tuple(f"row {rank} {number}" for number in range(20)) for rank in (0, 1)]
    heard(tmp_path, 0, rows=own[0], dataset_rows=None)
    merge_ranks(heard(tmp_path, 1, rows=own[0][:shared][::-1] + own[1], dataset_rows=None))
    (file,) = tmp_path.glob("watch-*")

    assert CHECKS["rows_trained_once"]()(read(file)).status is status


def test_other_numbers_of_micro_batches_are_suspected(tmp_path):
    """All ranks count alike in the mean, whatever they have added up."""
    trace = merged(tmp_path)
    main = trace.main
    uneven = [
        dataclasses.replace(seen, digests=(*seen.digests, "more")) if isinstance(seen, e.Window) else seen
        for seen in main.of_ranks[1]
    ]
    found = CHECKS["rows_trained_once"]()(
        dataclasses.replace(trace, attempts=(dataclasses.replace(main, of_ranks={1: tuple(uneven)}),))
    )

    assert found.status is Status.SUSPECTED
    assert found.detail == "step 0: 2 micro-batches on rank 1, 1 on rank 0"


@pytest.mark.parametrize(("wrapped", "status"), [(True, Status.FAILED), (False, Status.SUSPECTED)])
def test_any_module_is_given_other_batches_on_each_rank(tmp_path, wrapped, status):
    """One that DistributedDataParallel holds; parts of one model are given the same."""
    inputs = [e.StepInputs(step=step, digests=(f"batch {step}",)) for step in range(3)]
    start = e.Replica(steps=0, digest="one", wrapped=wrapped)
    trace = merged(tmp_path, also_first=[*inputs, start], also=[*inputs, start])
    trace = with_run(trace, premises=opened({"causal_lm": "known to its own code alone"}))
    own = with_run(trace, premises=BY_A_LOOP)
    found = CHECKS["rows_trained_once"]()(own)

    assert found.status is status
    assert CHECKS["rows_trained_once"]()(trace).expected
    assert "rank 1 was given the same 3 batches as rank 0, in the same order" in found.detail


@pytest.mark.parametrize(("shared", "status"), [(0, Status.UNJUDGED), (1, Status.UNJUDGED), (2, Status.SUSPECTED)])
def test_ranks_of_one_seed_share_batches_out_of_order(tmp_path, shared, status):
    """Where one of them draws numbers for an evaluation, too."""
    own, others = ([e.StepInputs(step=at, digests=(f"{rank} {at}",)) for at in range(4)] for rank in "ab")
    others[1 : 1 + shared] = [dataclasses.replace(own[at + 2], step=at + 1) for at in range(shared)]
    start = e.Replica(steps=0, digest="one", wrapped=True)
    trace = merged(tmp_path, also_first=[*own, start], also=[*others, start])
    trace = with_run(trace, premises={**BY_A_LOOP, **opened({"causal_lm": "known to its own code alone"})})

    assert CHECKS["rows_trained_once"]()(trace).status is status


@pytest.mark.parametrize(
    ("files", "status", "words"),
    [
        (("a.pt", "b.pt"), Status.PASSED, "2 files, each written by one rank"),
        (("a.pt", "a.pt"), Status.FAILED, "ranks 0, 1 wrote a.pt"),
        ((), Status.UNJUDGED, "no rank wrote"),
    ],
)
def test_no_file_is_written_by_two_ranks(tmp_path, files, status, words):
    """Also after the training, behind each process's trace."""
    options = heard(tmp_path, 0, also=[e.FileWritten(path=path) for path in files[:1]])
    heard(tmp_path, 1)
    for path in files[1:]:
        append(trace_file(options, 1, 1), e.FileWritten(path=path))
    merge_ranks(options)
    (file,) = tmp_path.glob("watch-*")
    found = CHECKS["saved_by_one_rank"]()(read(file))

    assert found.status is status
    assert words in found.detail


def test_an_expectation_that_nobody_could_judge_is_no_silent_pass(tmp_path):
    """Its reason is told; one of several checks that could is enough."""
    trace = merged(tmp_path)
    asked = {"expected": {"loss": "token_mean"}, "features": [*trace.run.features, "oracle"]}
    expecting = with_run(trace, **asked)
    (told,) = [found for found in judged_again(expecting, [], trace_file="").findings if found.check == "loss_oracle"]
    gradients = [*healthy().main.all(e.Setup), e.OwnRowsGradient(step=0, got=(1.0,), own=((1.0,),), tokens=5)]
    judged = merged(tmp_path / "judged", also_first=gradients, also=gradients)
    judged = judged_again(with_run(judged, **asked), [], trace_file="")

    assert (told.status, told.expected) == (Status.UNJUDGED, False)
    assert told.detail == "--expect loss=token_mean could not be judged: only its own rows"
    assert [found.expected for found in judged.findings if found.check == "loss_oracle"] == [True]
    assert [found.passed for found in judged.findings if found.check == "gradients_averaged"] == [True]


def test_what_the_first_process_saved_stays(tmp_path):
    """It alone saves, so that its trace has more attempts than the others'."""
    options = heard(tmp_path, 0)
    seen = e.ReadBack(files=("model.safetensors",), logit_difference=0.5, adapter_effect=None)
    append(trace_file(options, 1, 0), seen)
    heard(tmp_path, 1)
    merge_ranks(options)
    (file,) = tmp_path.glob("watch-*")
    trace = read(file)

    assert trace.ranks == [0, 1]
    assert [each for attempt in trace.attempts for each in attempt.all(e.ReadBack)] == [seen]


def test_losses_of_own_rows_differ_rightly(tmp_path):
    """A script reports each process's own."""
    assert CHECKS["ranks_report_alike"]()(merged(tmp_path, loss=9.0)).passed


@pytest.mark.parametrize(
    "second",
    [
        {"rows": ROWS[:6][::-1], "dataset_rows": None},
        {"rows": ROWS[:6][::-1], "dataset_rows": 10},
    ],
)
def test_rows_beyond_one_epoch_are_unjudged(tmp_path, second):
    """They may come again rightly."""
    found = CHECKS["rows_trained_once"]()(merged(tmp_path, **second))

    assert (found.status, found.expected) == (Status.UNJUDGED, True)


@pytest.mark.parametrize(
    "second",
    [{"end": e.AttemptEnd(outcome=e.AttemptOutcome.FAILED, detail="boom", seconds=1.0)}, {"processes": 3}, None],
)
def test_processes_that_were_not_all_heard_stay_apart(tmp_path, second):
    """One that failed, one of three that is missing, one that is alone."""
    options = heard(tmp_path, 0, processes=3 if second and "processes" in second else 2)
    if second is not None:
        heard(tmp_path, 1, **second)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    merge_ranks(options)

    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
