"""`tunecheck watch -- COMMAND`: statuses, output, bit-for-bit equality with the command by itself. fp32, CPU."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from tunecheck.cli import main
from tunecheck.core.paths import project_folder
from tunecheck.listen.launch import run_name

SCRIPT = """
import torch
from benchmarks.scripts.script import Script, plain_loop
script = Script(steps=4, lora={"r": 4, "lora_dropout": 0.1, "target_modules": ["q_proj"]})
model, tokenizer = script.model_and_tokenizer()
rows = script.examples(tokenizer)
batches = [script.collate(tokenizer, rows[at : at + 2]) for at in range(0, 12, 2)]
def tell(step, model, optimizer):
    print("SUM", step, repr(float(sum(p.detach().double().sum() for p in model.parameters()))), flush=True)
plain_loop(script, model, batches, around=tell)
"""


def run(tmp_path, *words):
    """Run a command with reports below this folder."""
    path = os.pathsep.join(filter(None, (str(project_folder()), os.environ.get("PYTHONPATH"))))
    own = {
        "PYTHONPATH": path,
        "TUNECHECK_REPORTS": str(tmp_path / "reports"),
        "NO_COLOR": "1",
        "PYTHONWARNINGS": "ignore",
    }
    return subprocess.run(
        [sys.executable, *words], env={**os.environ, **own}, capture_output=True, text=True, timeout=120, cwd=tmp_path
    )


@pytest.fixture
def script(tmp_path):
    """A loop with dropout, in a file."""
    (tmp_path / "train.py").write_text(SCRIPT)
    return "train.py"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --rate 1e-3", "train"),
        ("accelerate launch scripts/sft.py", "sft"),
        ("llamafactory-cli train lora.yaml", "lora"),
        ("/usr/bin/python3.12 -c print(1)", "inline"),
        ("python -m trainer.main --fast", "trainer.main"),
        ("torchrun --nproc-per-node 2 -m trainer", "torchrun"),
        ("trl sft --model x", "trl-sft"),
        ("python", "python"),
    ],
)
def test_a_run_is_called_after_what_is_run(command, name):
    """Not after the interpreter, where it runs anything else than a file."""
    assert run_name(command.split()) == name


def test_a_command_of_any_length_starts(tmp_path, monkeypatch, capfd):
    """Longer than the 128 KiB of one variable; on GitHub, what could not be judged is an annotation."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TUNECHECK_REPORTS", "reports")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    words = ["é" * 40_000] * 4

    assert main(["watch", "--", sys.executable, "-c", "import sys; print(len(sys.argv))", *words]) == 6
    printed = capfd.readouterr().out
    assert "5\n" in printed
    assert "::error title=watch/inline%3A error::the command trained nothing" in printed
    (folder,) = (tmp_path / "reports").glob("2*")
    assert f"report: {folder}" in printed  # absolute, though the variable is not
    assert words[0] in json.loads((folder / "verdict.json").read_text())["command"]


NOTICED = """
import signal, sys, time
seen = []
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGRTMIN):
    signal.signal(number, lambda number, frame: (seen.append(number), print("GOT", number, flush=True)))
print("READY", flush=True)
while len(seen) < 4:
    time.sleep(0.01)
"""


def test_a_schedulers_notice_reaches_the_command_and_ends_nothing(tmp_path):
    """Slurm's --signal; where the command has no handler, it ends by the notice, and what was heard is judged."""
    environment = {**os.environ, "TUNECHECK_REPORTS": str(tmp_path / "reports"), "PYTHONPATH": str(project_folder())}
    start = [sys.executable, "-m", "tunecheck.cli", "watch", "--", sys.executable, "-c"]
    kept = {"stdout": subprocess.PIPE, "text": True, "env": environment, "cwd": tmp_path}
    with subprocess.Popen([*start, NOTICED], **kept) as watched:
        assert watched.stdout.readline() == "READY\n"
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGRTMIN):
            watched.send_signal(number)
            assert watched.stdout.readline() == f"GOT {int(number)}\n"
        assert "trained nothing" in " ".join(watched.stdout.read().split())
    assert watched.returncode == 6
    with subprocess.Popen([*start, "import time; print('READY', flush=True); time.sleep(60)"], **kept) as watched:
        assert watched.stdout.readline() == "READY\n"
        watched.send_signal(signal.SIGUSR1)
        assert "the command was interrupted before it trained" in " ".join(watched.stdout.read().split())
    assert watched.returncode == 2


def test_listening_changes_nothing_and_the_verdict_is_the_status(script, tmp_path):
    """The weights after every step are the same to the last bit, dropout and the steps after listening included."""
    alone = run(tmp_path, script)
    watched = run(tmp_path, "-m", "tunecheck.cli", "watch", "--steps", "3", "--", sys.executable, script)
    sums = [line for line in watched.stdout.splitlines() if line.startswith("SUM")]

    assert alone.returncode == 0, alone.stderr
    assert watched.returncode == 0, watched.stdout + watched.stderr
    assert sums == alone.stdout.splitlines()
    assert len(sums) == 4
    assert "verdict: PASS" in watched.stdout
    (folder,) = (tmp_path / "reports").iterdir()
    verdict = json.loads((folder / "verdict.json").read_text())
    assert verdict["runs"][0]["tier"] == "watch"
    assert verdict["runs"][0]["run"] == "train"
    assert {"junit.xml", "report.html", "watch-train.jsonl"} <= {path.name for path in folder.iterdir()}


@pytest.mark.slow
def test_a_script_that_fails_by_itself_could_not_be_judged(tmp_path):
    """Its own traceback stays, its status comes back on request, and the verdict is no pass."""
    faulty = "optimizer.step()\n    optimizer.zero_grad()\n    if _ == 4: raise RuntimeError('the script\\'s own')"
    (tmp_path / "train.py").write_text(LOOP_OF_ANOTHER_KIND.replace("optimizer.step()", faulty))
    watched = run(tmp_path, "-m", "tunecheck.cli", "watch", "--steps", "2", "--", sys.executable, "train.py")
    kept = run(
        tmp_path,
        "-m",
        "tunecheck.cli",
        "watch",
        "--keep-status",
        "--",
        sys.executable,
        "-c",
        "import os; os.kill(os.getpid(), 9)",
    )

    assert watched.returncode == 6
    assert "RuntimeError: the script's own" in watched.stderr
    assert "verdict: INCONCLUSIVE" in watched.stdout
    assert "attribution: workload: the training code or a library raised an error" in " ".join(watched.stdout.split())
    assert kept.returncode == 128 + 9, "as a shell says it"
    assert "trained nothing that tunecheck can watch" in " ".join(kept.stdout.split())


UNUSUAL = """
import os, sys
import torch
from small_net import Net
def forked(model, optimizer):
    if os.fork() == 0:  # a process that computes with the model, and comes to its own end
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        sys.exit()
    os.wait()
files, model = [], Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(6):
    model(torch.randn(4, 8)).square().mean().backward()
    if step == 2:
        forked(model, optimizer)
        os.closerange(3, 64)
        files += [open(f"own{number}", "wb") for number in range(8)]
    optimizer.step()
    optimizer.zero_grad()
forked(model, optimizer)
os._exit(0)
"""


@pytest.mark.slow
def test_a_process_that_forks_closes_all_files_and_ends_at_once(tmp_path):
    """Its trace is its own and whole, and nothing of it is in a file of the script's."""
    (tmp_path / "train.py").write_text(UNUSUAL)
    shutil.copy(project_folder() / "tests" / "small_net.py", tmp_path)
    watched = run(tmp_path, "-m", "tunecheck.cli", "watch", "--steps", "4", "--", sys.executable, "train.py")

    assert watched.returncode == 0, watched.stdout + watched.stderr
    assert "verdict: PASS" in watched.stdout
    assert [path.stat().st_size for path in tmp_path.glob("own*")] == [0] * 8


@pytest.mark.slow
def test_an_error_that_was_caught_ends_no_training(tmp_path):
    """Python keeps it all the same, as that of a test which is expected to fail."""
    body = LOOP_OF_ANOTHER_KIND.replace("\n", "\n    ")
    expected = "import pytest\n@pytest.mark.xfail\ndef test_z():\n    assert False\n"
    (tmp_path / "test_it.py").write_text(f"def test_a():\n    {body}\n\n{expected}")
    options = "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", ".", "test_it.py"
    watched = run(tmp_path, "-m", "tunecheck.cli", "watch", "--", sys.executable, "-m", "pytest", *options)
    assert "1 xfailed" in watched.stdout
    (file,) = tmp_path.glob("reports/*/watch-*.jsonl")
    assert '"outcome": "finished"' in file.read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "watch: no command;"),
        (("--steps", "1", "--", "true"), "--steps: should be at least 2"),
        (("--", "no-such-program-here"), "cannot be started: No such file or directory: no-such-program-here"),
        (("--", "."), "cannot be started: Permission denied: ."),
    ],
)
def test_a_wrong_call_is_a_usage_error(words, told, tmp_path):
    """With the rule and the way out, and no traceback."""
    done = run(tmp_path, "-m", "tunecheck.cli", "watch", *words)

    assert done.returncode == 4
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("reports/*")), "no folder of a session that did not begin"


def test_a_sitecustomize_of_the_users_own_still_runs(tmp_path):
    """Ours hides it, and calls it."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("print('my own')")
    os.environ["PYTHONPATH"], before = str(tmp_path / "own"), os.environ.get("PYTHONPATH")
    try:
        done = run(tmp_path, "-m", "tunecheck.cli", "watch", "--", sys.executable, "-c", "print('and the script')")
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before

    assert done.stdout.splitlines().count("my own") >= 1
    assert "and the script" in done.stdout


MODULES = """first, second = torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)
model = torch.nn.Sequential(first, second)"""
TENSORS = """from types import SimpleNamespace
matrices = torch.randn(3, 2, requires_grad=True), torch.randn(2, 1, requires_grad=True)
first, second = (SimpleNamespace(weight=one, parameters=lambda one=one: [one]) for one in matrices)
model = lambda x: x @ first.weight @ second.weight"""
LOOP_OF_ANOTHER_KIND = f"""
import torch
{MODULES}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    model(torch.ones(2, 3)).square().mean().backward()
    optimizer.step()
print("trained", float(first.weight.detach().sum()))
import sys
print("imported", *{{"peft", "transformers", "bitsandbytes"}} & {{*sys.modules}})
"""


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        (
            ("", ""),
            1,
            "the optimizer uses gradients again, together with those of a later backward pass (in 5 of 6 steps)",
        ),
        (
            ("= torch.nn.Sequential(first, second)", "= lambda x: second(first(x))"),
            1,
            "the optimizer uses gradients again, together with those of a later backward pass (in 5 of 6 steps)",
        ),
        ((MODULES, TENSORS), 6, "no module was called with gradients"),
    ],
    ids=["a module", "two modules that nothing holds", "no module"],
)
@pytest.mark.slow
def test_a_model_that_is_none_of_transformers_is_judged_by_what_holds_for_all(tmp_path, change, status, words):
    """Here by the order of its calls; where no module is the model, the verdict says so."""
    script = LOOP_OF_ANOTHER_KIND.replace(*change).replace(
        "model.parameters()", "[*first.parameters(), *second.parameters()]"
    )
    (tmp_path / "train.py").write_text(script)
    done = run(tmp_path, "-m", "tunecheck.cli", "watch", "--", sys.executable, "train.py")

    assert done.returncode == status
    assert "trained " in done.stdout
    assert "imported\n" in done.stdout, "nor is a library that the script does without"
    assert words in " ".join(done.stdout.split())


def test_reports_that_cannot_be_written_are_told_before_the_command_starts(tmp_path):
    """With the folder and the way out; nothing was trained unseen."""
    (tmp_path / "reports").write_text("a file where the folder should be")
    done = run(tmp_path, "-m", "tunecheck.cli", "watch", "--", sys.executable, "-c", "print('started')")

    assert done.returncode == 4
    assert "TUNECHECK_REPORTS" in done.stderr
    assert "started" not in done.stdout
    assert "Traceback" not in done.stderr
