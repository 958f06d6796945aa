"""The runs before the watched one that `--twice` makes: what is run, compared and said. Made-up traces."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
from traces import healthy, opened, with_record, with_run

from tunecheck.checks import CHECKS
from tunecheck.core import evidence as e
from tunecheck.core.finding import Status
from tunecheck.core.trace import TraceWriter, read
from tunecheck.listen.options import Options, trace_file
from tunecheck.listen.twice import NO_CHECKPOINT, NOT_TWICE, OUTPUT, append_to, keeps_checkpoint, rehearse

STEPS = 6


def written(options, *, first_step=0, loss=1.0):
    """Write what a run with these options leaves: the healthy run's first steps, in its own folder."""
    trace = with_run(healthy(), training={"max_steps": options.steps, "first_step": first_step})
    records = [r for r in trace.main.records if isinstance(r, e.Trained | e.Setup)]
    done = STEPS - options.steps
    for step in trace.steps[done:]:
        records.append(dataclasses.replace(step, step=step.step - done, loss=step.loss * loss))
    writer = TraceWriter(trace_file(options, 1, 0))
    writer.write(trace.header, trace.main.start, *records, trace.main.end)


def rehearsed(tmp_path, *, checkpoints=(3, 6), began=0, loss=1.0):
    """Rehearse a command that trains six steps and keeps these checkpoints; then the watched run. Return its trace."""
    runs = []

    def run(options):
        runs.append(options)
        resumed = options.purpose == "resume"
        written(options, first_step=began + (STEPS - options.steps if resumed else 0), loss=loss if resumed else 1.0)
        for number in checkpoints:
            (trace_file(options, 1, 0).parent / OUTPUT / f"checkpoint-{number}").mkdir(parents=True, exist_ok=True)
        return 0

    options = Options(folder=str(tmp_path), name="train", steps=STEPS, twice=True)
    asked, left = rehearse(options, run)
    path = trace_file(options, 1, 0)
    written(asked)
    append_to(path, left)
    trace = read(path)
    probes = {"repeat_steps": asked.repeat_steps, "resume_from": asked.resume_from}
    return runs, with_run(trace, probes=probes, premises=opened(asked.not_twice))


def test_a_command_that_repeats_and_resumes_passes(tmp_path):
    """The second run resumes from the checkpoint in the middle, for the steps that are left."""
    runs, trace = rehearsed(tmp_path)

    assert [(run.purpose, run.steps) for run in runs] == [("repeat", 6), ("resume", 3)]
    assert runs[1].checkpoint.endswith("checkpoint-3")
    assert CHECKS["repeat_equals"]()(trace).passed
    assert CHECKS["resume_equals"]()(trace).passed


def test_a_resume_that_goes_on_otherwise_fails(tmp_path):
    """By its losses."""
    _, trace = rehearsed(tmp_path, loss=1.01)

    assert CHECKS["repeat_equals"]()(trace).passed
    assert CHECKS["resume_equals"]()(trace).status is Status.FAILED


def test_a_training_without_checkpoints_is_not_resumed(tmp_path):
    """And the check says why."""
    runs, trace = rehearsed(tmp_path, checkpoints=(6,))
    finding = CHECKS["resume_equals"]()(trace)

    assert len(runs) == 1
    assert (finding.status, finding.expected, finding.detail) == (Status.UNJUDGED, True, NO_CHECKPOINT)


def test_a_script_that_resumes_by_itself_is_not_compared(tmp_path):
    """It began elsewhere than the watched run."""
    _, trace = rehearsed(tmp_path, began=20, checkpoints=())
    finding = CHECKS["repeat_equals"]()(trace)

    assert finding.status is Status.UNJUDGED
    assert "the script resumes on its own" in finding.detail


def test_a_command_that_trains_nothing_twice_says_so(tmp_path):
    """Neither check is judged, and the watched run has its own options."""
    options = Options(folder=str(tmp_path), name="train", twice=True)
    found, left = rehearse(options, lambda _: 1)

    assert (found.purpose, left) == ("train", {})
    assert found.not_twice == {"repeated": NOT_TWICE, "resumed": NOT_TWICE}


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, True),
        ({"save_strategy": "no"}, False),
        ({"save_strategy": "SaveStrategy.NO"}, False),
        ({"save_only_model": True}, False),
        ({"ignore_data_skip": True}, False),
    ],
)
def test_a_checkpoint_is_kept_where_the_training_keeps_any(changes, kept):
    """In the middle of the steps that are listened to, or of all where there are fewer."""
    usual = {"save_strategy": "SaveStrategy.STEPS", "save_only_model": False, "ignore_data_skip": False}
    args, state = SimpleNamespace(**{**usual, **changes}), SimpleNamespace(max_steps=8)

    assert keeps_checkpoint(args, state, 4, 10) is kept
    assert not keeps_checkpoint(args, state, 5, 10)


def test_a_repeat_with_another_loss_fails():
    """In any step."""
    trace = with_record(healthy(), e.Step, 1, purpose="repeat", loss=2.0)

    assert CHECKS["repeat_equals"]()(trace).status is Status.FAILED
