"""The answer while the training goes on: a loop of a small module, run by the command. CPU, fp32."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from process_traces import heard

from tunecheck.cli import main
from tunecheck.core import evidence as e
from tunecheck.core.trace import encode, read
from tunecheck.listen import launch
from tunecheck.listen.launch import once_over
from tunecheck.listen.options import trace_file
from tunecheck.results.rejudge import judged_again

LOOP = """
import pathlib, sys, time, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(50, 32), nn.Linear(32, 50))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step, ids in enumerate(torch.randint(0, 50, (40, 4, 17))):
    wanted = ids[:, :-1] if "bad" in sys.argv else ids[:, 1:]
    loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), wanted.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.12 * (step > 10 and "soon" not in sys.argv))
pathlib.Path("done").touch()
"""


def command(folder, *options, words=()):
    """Watch the loop in this folder; return the process that ended, and whether the loop did."""
    (folder / "loop.py").write_text(LOOP)
    watch = [sys.executable, "-m", "tunecheck.cli", "watch", *options, "--", sys.executable, "loop.py", *words]
    done = subprocess.run(watch, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    return done, (folder / "done").exists()


def test_the_verdict_comes_while_the_training_goes_on(tmp_path):
    """On standard error, as one block; the training ends by itself, and the end's verdict is that of the status."""
    ended, whole = command(tmp_path, words=["bad"])

    assert whole
    assert "FAILED watch/loop: no_target_leakage" in ended.stderr
    assert "verdict so far: FAIL — " in ended.stderr
    assert "after 10 steps; the training continues" in ended.stderr
    assert ended.stdout.startswith("verdict: FAIL — ")  # nothing changed, so that the end repeats nothing
    assert ended.returncode == 1


def test_a_quiet_command_reports_once(tmp_path):
    """At its end, on standard output."""
    ended, _ = command(tmp_path, "-q", words=["bad"])

    assert "verdict" not in ended.stderr
    assert ended.stdout.count("FAILED watch/loop: no_target_leakage") == 1


def test_a_failure_ends_the_training_where_that_is_asked(tmp_path):
    """With the verdict's status, long before its end; the files say what was judged."""
    ended, whole = command(tmp_path, "--stop-on-fail", words=["bad"])

    assert not whole
    assert "after 10 steps; the training ends" in ended.stderr
    assert ended.returncode == 1
    (verdict,) = tmp_path.glob("reports/runs/*/verdict.json")
    assert json.loads(verdict.read_text())["verdict"] == "fail"


def test_a_limit_of_the_users_own_is_the_traces(tmp_path, capsys):
    """Whoever judges the trace again goes by it, or by another one; one of a check that does not apply does nothing."""
    limits = ["checks.no_target_leakage.max_share=1.0", "checks.memory_flat.max_rise_bytes=1"]
    ended, _ = command(tmp_path, *(word for limit in limits for word in ("--set", limit)), words=["bad", "soon"])
    assert ended.returncode == 0, ended.stderr

    (trace,) = tmp_path.glob("reports/runs/*/watch-*.jsonl")
    assert main(["judge", str(trace)]) == 0
    assert main(["judge", str(trace), "--set", "checks.no_target_leakage.max_share=0.9"]) == 1
    assert 'if it is meant  --ignore no_target_leakage="WHY"' in capsys.readouterr().out


def test_a_limit_that_does_not_exist_is_refused_before_anything_runs(tmp_path):
    """As a usage error, with the nearest name."""
    ended, whole = command(tmp_path, "--set", "checks.no_target_leakage.max_shar=1")
    assert (ended.returncode, whole) == (4, False)
    assert "max_share" in ended.stderr


def test_answers_stay_with_the_trace(tmp_path):
    """What was ignored is ignored by whoever judges it again."""
    ended, _ = command(tmp_path, "--ignore", "no_target_leakage=an autoencoder", words=["bad", "soon"])
    assert ended.returncode == 0

    (trace,) = tmp_path.glob("reports/runs/*/watch-*.jsonl")
    row = judged_again(read(trace), [], trace_file=trace.name)
    assert [(found.check, found.meant) for found in row.ignored] == [("no_target_leakage", "an autoencoder")]


def test_a_loop_is_ended_after_its_steps_where_that_is_asked(tmp_path):
    """What was heard until then is the verdict, also of whoever judges the trace again."""
    ended, whole = command(tmp_path, "--stop")

    assert not whole
    assert "after 10 steps; the training ends. report:" in ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr
    assert ended.returncode == 0, ended.stdout
    (trace,) = tmp_path.glob("reports/runs/*/watch-*.jsonl")
    assert main(["judge", str(trace)]) == 0


def test_a_pass_ends_nothing(tmp_path):
    """It trains to its end."""
    ended, whole = command(tmp_path, "--stop-on-fail")

    assert whole
    assert "after 10 steps; the training continues" in ended.stderr
    assert ended.returncode == 0


@pytest.fixture
def at_once(monkeypatch):
    """A window that is over is judged at once."""
    monkeypatch.setattr(launch, "SETTLED_SECONDS", 0.0)


def window_over(folder, rank):
    """Write the trace of one of two processes that goes on, its window over; the last line is being written."""
    options = heard(folder, rank)
    file = trace_file(options, 1, rank)
    first, *lines = file.read_text().splitlines(keepends=True)
    over = encode(e.WindowEnded(steps=4)) + "\n"
    file.write_text("".join([first, *lines[:-1], over, '{"kind": "Sav']))
    return options


def test_all_processes_are_waited_for(tmp_path, at_once):
    """Then they are judged as one training; the traces themselves are left alone."""
    told = []
    look = once_over(window_over(tmp_path, 0), lambda folder: told.append(read(folder / "watch-train.jsonl")))
    look()
    assert told == []

    window_over(tmp_path, 1)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    look()
    look()
    (trace,) = told
    assert trace.ranks == [0, 1]
    assert trace.main.finished
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_training_that_has_ended_is_left_to_the_verdict_at_the_end(tmp_path, at_once):
    """Its trace has an end already."""
    told = []
    for rank in (0, 1):
        options = window_over(tmp_path, rank)
        file = trace_file(options, 1, rank)
        whole, _, _ = file.read_bytes().rpartition(b"\n")
        ended = e.AttemptEnd(outcome=e.AttemptOutcome.FINISHED, detail="", seconds=1.0)
        file.write_bytes(whole + b"\n" + encode(ended).encode() + b"\n")
    once_over(options, told.append)()
    assert told == []


def test_a_window_that_goes_on_tells_nothing(tmp_path, at_once):
    """Nor does a training that was not heard at all."""
    options = heard(tmp_path, 0, processes=1)
    once_over(options, pytest.fail)()
    once_over(replace(options, name="other"), pytest.fail)()
