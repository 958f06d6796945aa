"""Traces of several processes of one command become one, where all were heard to the same end."""

from __future__ import annotations

import pytest
from process_traces import ROWS, heard

from tunecheck.checks import CHECKS
from tunecheck.core import evidence as e
from tunecheck.core.finding import Status
from tunecheck.core.trace import read
from tunecheck.listen.exports import append
from tunecheck.listen.merging import merge_ranks
from tunecheck.listen.options import trace_file


def merged(folder, **second):
    """Return the one trace of two processes, the second of which may differ."""
    heard(folder, 0, dataset_rows=second.get("dataset_rows", 12))
    merge_ranks(heard(folder, 1, **second))
    (file,) = folder.glob("watch-*")
    return read(file)


def test_two_processes_are_one_training(tmp_path):
    """Judged by the checks of several processes; what each leaves unjudged stays so."""
    trace = merged(tmp_path)

    assert trace.ranks == [0, 1]
    assert "parallel" in trace.run.features
    assert trace.run.processes == 2
    assert trace.of_rank(1).open_premises["every_row_seen"] == "only its own rows"
    for name in ("rows_trained_once", "ranks_report_alike"):
        assert CHECKS[name]()(trace).status is Status.PASSED
    assert CHECKS["dropout_differs_by_rank"]()(trace).expected


@pytest.mark.parametrize(
    ("name", "second", "words"),
    [
        ("rows_trained_once", {"rows": ROWS[:6]}, "the same 6 rows as rank 0, in the same order"),
        ("rows_trained_once", {"rows": ROWS[:6], "dataset_rows": None}, "the same 6 rows as rank 0"),
        ("rows_trained_once", {"rows": ROWS[1:7]}, "5 of 6 rows of rank 1 are also rank 0's"),
        ("ranks_report_alike", {"learning_rate": 9.0}, "learning_rate 9 on rank 1"),
    ],
)
def test_what_the_processes_do_not_share_is_named(tmp_path, name, second, words):
    """Although each of them is healthy by itself."""
    found = CHECKS[name]()(merged(tmp_path, **second))

    assert found.status is Status.FAILED
    assert words in found.detail


def test_what_the_first_process_saved_stays(tmp_path):
    """It alone saves, so that its trace has more attempts than the others'."""
    options = heard(tmp_path, 0)
    seen = e.ReadBack(files=("model.safetensors",), logit_difference=0.5, adapter_effect=None)
    append(trace_file(options, 1, 0), e.AttemptPurpose.READ_BACK, "cpu", 1.0, seen)
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
