"""Faults of the machine in real sessions: could not be judged, never judged bad, and never a success.

scripts/chaos.sh injects many more.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import shared_fork_server

from benchmarks.chaos.faults import faults
from benchmarks.chaos.rehearsed import REHEARSED
from tunecheck.cli import main


@pytest.fixture
def short_folder():
    """A temporary folder whose path leaves room for the name of a socket, which pytest's own may not."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


FAULTS = {fault.name: fault for fault in faults()}
PROJECT = Path(__file__).parents[2]
WRITING = "disk full when the verdict is written (reports on 48 KiB)"
SAMPLE = ("training killed (SIGKILL)", "session: SIGHUP", WRITING)


@pytest.mark.parametrize("test", [test for _, test in REHEARSED.values()])
def test_what_rehearses_a_fault_is_there(test):
    """docs/reliability.md names it."""
    file, _, name = test.partition("::")
    assert f"def {name}(" in (PROJECT / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SAMPLE)
@pytest.mark.slow
def test_a_fault_gets_its_own_word(name, tmp_path, monkeypatch, capsys):
    """Outcome, domain and status; the steps before it are kept, nothing is left behind, no traceback is printed."""
    fault = FAULTS[name]
    if reason := fault.lacking():
        pytest.skip(reason)
    monkeypatch.setenv("HF_TOKEN", "hf_made_up_and_never_printed")
    if name == WRITING:  # its training has ended by then
        for variable, value in shared_fork_server.variables().items():
            monkeypatch.setenv(variable, value)
    ended = fault.inject(tmp_path)

    assert ended.status == fault.status, ended.output
    assert ended.tracebacks == 0, ended.output
    assert ended.processes_left == ()
    written = [ended.output.encode(), *(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())]
    assert not [text for text in written if b"hf_made_up" in text], "a token is in no output"
    if not fault.outcome:
        assert ended.verdict is None
        assert "The verdict would be lost otherwise" in ended.output
        return
    assert (ended.row["outcome"], ended.row["domain"]) == (fault.outcome, fault.domain)
    assert ended.steps_kept >= fault.keeps
    (trace,) = (tmp_path / "reports").glob("*/*.jsonl")
    assert main(["judge", str(trace)]) == fault.status, "what the session itself said"
    assert "0 failed" in capsys.readouterr().out


@pytest.mark.slow
def test_what_a_killed_session_leaves_goes_at_the_next_start(tmp_path, short_folder, monkeypatch):
    """Its trace is judged as interrupted, a rank that hangs is gone, its temporary folder goes with the next run."""
    from tunecheck import runner

    kept = short_folder
    monkeypatch.setenv("TMPDIR", str(kept))
    ended = FAULTS["session: SIGKILL while one of two ranks hangs"].inject(tmp_path)

    assert ended.processes_left == ()
    assert ended.steps_kept >= 1
    (trace,) = (tmp_path / "reports").glob("*/*.jsonl")
    assert main(["judge", str(trace)]) == 2
    assert len(list(kept.glob(f"{runner.PREFIX}*"))) == 1
    monkeypatch.setattr(runner.tempfile, "tempdir", str(kept))
    with runner.scratch_folder() as folder, runner.scratch_folder() as other:
        assert set(kept.glob(f"{runner.PREFIX}*")) == {folder, other}, "the living one of another run stays"
    assert list(kept.glob(f"{runner.PREFIX}*")) == []


def test_a_scratch_folder_that_is_being_made_is_no_orphan(monkeypatch, tmp_path):
    """Two sessions begin at once: the one looks for orphans while the other is about to lock its new folder."""
    from tunecheck import runner

    monkeypatch.setattr(runner.tempfile, "tempdir", str(tmp_path))
    lock = runner.fcntl.flock

    def lock_late(file, operation):
        if operation == runner.fcntl.LOCK_EX:
            runner._remove_orphans()
        lock(file, operation)

    monkeypatch.setattr(runner.fcntl, "flock", lock_late)
    with runner.scratch_folder() as folder:
        assert folder.is_dir()
