"""Rows that a data set holds twice: each is identified by its place, and none is the trainer's repetition."""

from __future__ import annotations

import pytest
import tiny

from benchmarks.detection.bugs import BUGS
from tunecheck.config import find_run, load_run
from tunecheck.core.evidence import DataSplit
from tunecheck.core.finding import Status
from tunecheck.core.paths import shipped_folder
from tunecheck.runner import Runner

ROWS = shipped_folder() / "configs" / "data" / "rust-python-facts"


def findings(folder, train, *settings, faults=()):
    """What the tiny quick run on these rows of the shipped ones is found to be, and its split."""
    lines = (ROWS / "train.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    folder.mkdir(exist_ok=True)
    (folder / "train.jsonl").write_text("".join(lines[row] for row in train), encoding="utf-8")
    run = load_run(
        find_run("quick/smollm2-135m-qlora"), [*tiny.TRAINED, f"data.train={folder / 'train.jsonl'}", *settings]
    )
    trace = Runner(folder=folder, environment={}, faults=faults, gpu=False).execute(run)
    return {name: check(trace) for name, check in run.resolved_checks().items()}, trace.one(DataSplit)


@pytest.mark.slow
def test_rows_that_are_there_twice_are_no_fault_of_the_trainer(tmp_path):
    """Forty rows and the first ten of them again, and three rows twice in micro-batches of one."""
    for name, train, settings in (
        ("ten", [*range(40), *range(10)], ()),
        ("alone", [0, 1, 2, 0, 1, 2], ("training.micro_batch_size=1", "training.gradient_accumulation_steps=1")),
    ):
        found, split = findings(tmp_path / name, train, *settings, "training.max_steps=6")

        assert [str(f) for f in found.values() if f.status is Status.FAILED] == []
        assert len(split.duplicates) == len(train) - len(set(train))
    assert split.duplicates == {"train:3": "train:0", "train:4": "train:1", "train:5": "train:2"}
    assert found["heldout_is_disjoint"].detail.startswith("6 training rows (3 repeat an earlier one)")
    assert (
        found["batches_differ"].detail
        == "6 micro-batches, 0 of them repeated; 3 more repeat because the data set repeats their rows"
    )


def test_a_repeated_batch_is_seen_among_rows_that_are_there_twice(tmp_path):
    """The data explains as many repetitions as it has, and no more."""
    found, _ = findings(tmp_path, [*range(40), *range(10)], faults=(BUGS["X22"],))

    assert {"row_order", "batches_differ"} <= {name for name, f in found.items() if f.status is Status.FAILED}
