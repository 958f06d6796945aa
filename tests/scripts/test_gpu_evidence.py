"""What is prepared for a machine with a GPU: the one command, and its tables, from made-up traces of a made-up card."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from rehearsing import slow

from tunecheck.config import TIERS, find_run, load_run
from tunecheck.core.errors import SuiteError
from tunecheck.core.evidence import AttemptEnd, AttemptStart, Phase, RunHeader, Setup
from tunecheck.core.paths import project_folder
from tunecheck.core.trace import SCHEMA, TraceWriter, read
from tunecheck.memory.constants import CUBLAS_WORKSPACE

SCRIPT = project_folder() / "scripts" / "gpu-evidence.sh"
CARD = "Made-up Card 8000"
MIB = 2**20
PARTS = ["constants", "quick", "quick-fp32", "convergence", "cudnn", "memory", "full", "extended", "strategies"]
PARTS += ["peaks", "cap"]
"""In the order of what their minutes are worth."""


def asked(*arguments):
    """The command with these arguments, which never begins to train."""
    return subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, check=False)


def test_the_command_goes_through_all_tiers_and_eighteen_configurations():
    """Each tier with --require-gpu, one part under a cap; --whole shortens nothing."""
    listed = asked("--list")
    lines = listed.stdout.splitlines()

    assert listed.returncode == 0
    assert [line[3:] for line in lines if line.startswith("== ")] == PARTS
    sessions = [line for line in lines if "pytest" in line]
    assert {f"tiers/test_{tier}.py" for tier in TIERS} == {line.split()[3] for line in sessions}
    assert all("--require-gpu" in line for line in sessions)
    assert (
        sum("probes.rungs=gpu" in line and "pad_to_sequence_len=true" in line for line in sessions) == 6
    )  # three each
    assert sum("--vram-cap 8GiB" in line for line in sessions) == 1
    assert "training.max_steps=300" in listed.stdout
    assert "training.max_steps" not in asked("--list", "--whole").stdout


def test_convergence_runs_with_and_without_cudnn_attention():
    """And quick in both precisions."""
    lines = asked("--list").stdout.splitlines()

    for value in ("true", "false"):
        (line,) = [line for line in lines if f"training.cudnn_attention={value}" in line]
        assert "tiers/test_convergence.py" in line
    assert sum("tiers/test_quick.py" in line and "training.precision=fp32" in line for line in lines) == 1


@pytest.fixture
def machine(tmp_path):
    """An environment whose Python notes what it is asked to do, and does nothing; a card; a folder for the evidence."""
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        f"""#!/bin/bash
echo "$*" >>{tmp_path}/calls
case "$*" in
  *"-m pytest"*) mkdir -p "$TUNECHECK_REPORTS/session"; exec sleep "$(cat {tmp_path}/seconds 2>/dev/null || echo 0)" ;;
  *probe*) echo "{CARD}" ;;
esac
"""
    )
    python.chmod(0o755)
    sums = "".join((project_folder() / name).read_text() for name in ("pyproject.toml", "constraints.txt"))
    digest = hashlib.sha256(sums.encode()).hexdigest()
    (tmp_path / "venv" / ".tunecheck-installed").write_text(f"{digest}  -\n")
    return tmp_path


def evidence(machine, *arguments):
    """The command on that machine."""
    environment = {**os.environ, "VIRTUAL_ENV": str(machine / "venv")}
    command = [SCRIPT, "--output", str(machine / "evidence"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def sessions(machine):
    """How many pytest sessions were begun so far."""
    calls = machine / "calls"
    return calls.read_text().count("-m pytest") if calls.exists() else 0


def test_a_later_session_goes_on(machine):
    """What came to its end is kept and not run again; without --resume it is."""
    first = evidence(machine, "quick", "peaks")
    assert (first.returncode, sessions(machine)) == (0, 7), first.stderr
    (machine / "evidence" / "quick" / "session" / "kept").touch()

    resumed = evidence(machine, "--resume", "quick", "peaks", "memory")
    assert (resumed.returncode, sessions(machine)) == (0, 8), resumed.stderr
    assert (machine / "evidence" / "quick" / "session" / "kept").exists()

    evidence(machine, "quick")
    assert sessions(machine) == 9
    assert not (machine / "evidence" / "quick" / "session" / "kept").exists()


def test_a_session_that_cannot_end_in_time_is_not_begun(machine):
    """It is said what is left and how to go on, and former evidence stays."""
    former = machine / "evidence" / "quick" / "session"
    former.mkdir(parents=True)

    done = evidence(machine, "--minutes", "1", "quick", "memory")

    assert (done.returncode, sessions(machine)) == (2, 0), done.stderr
    assert f"left: quick memory; go on with: scripts/gpu-evidence.sh --resume --output {machine}" in done.stdout
    assert former.exists()


@slow
def test_it_never_runs_past_its_time(machine):
    """A session that would take ten minutes is ended, and the later ones are not begun."""
    (machine / "seconds").write_text("600")
    begun = time.monotonic()

    done = evidence(machine, "--minutes", "3", "quick", "memory")

    assert time.monotonic() - begun < 180
    assert (done.returncode, sessions(machine)) == (2, 1), done.stderr
    assert "left: quick memory" in done.stdout


def test_a_rehearsal_asks_for_no_gpu():
    """The same way through on the CPU, with a tiny random model."""
    listed = asked("--list", "--rehearse", "quick").stdout

    assert "--require-gpu" not in listed
    assert "device=cpu" in listed
    assert [line for line in listed.splitlines() if line.startswith("== ")] == ["== quick"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fast"], "unknown argument 'fast'"),
        (["--minutes", "0"], "--minutes needs a whole number"),
        (["--output"], "--output needs a folder"),
        (["--bundle", "/not/there"], "--bundle needs a folder that exists"),
    ],
)
def test_a_wrong_request_is_a_message_and_status_4(arguments, words):
    """With the way to what there is."""
    done = asked(*arguments)

    assert done.returncode == 4
    assert f"gpu-evidence.sh: {words}" in done.stderr
    assert "--help lists what there is" in done.stderr


# The tables.


@pytest.fixture(scope="module")
def tables():
    """scripts/evidence-tables.py as a module."""
    spec = importlib.util.spec_from_file_location(
        "evidence_tables", project_folder() / "scripts" / "evidence-tables.py"
    )
    module = sys.modules["evidence_tables"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trained(writer, peak_mib, *, outcome="finished", purpose="train", rung="", changes=None, cap=None, on_gpu=True):
    """One attempt whose largest peak in a training phase is this; what the evaluation took is larger."""
    device = "cuda:0" if on_gpu else "cpu"
    cuda = {"name": CARD, "uuid": "GPU-1"} if on_gpu else None
    held = [peak_mib * MIB if on_gpu else None for _ in range(2)]
    writer.write(
        AttemptStart(
            purpose=purpose,
            device=device,
            reason="requested",
            changes=changes or {},
            fallback_step=rung,
            vram_cap_bytes=cap,
        ),
        Setup(
            declared_optimizer="AdamW",
            device=device,
            device_name=CARD if on_gpu else "cpu",
            precision="bf16",
            threads=1,
            attention="sdpa",
            optimizer="AdamW",
            workarounds=(),
            numerics={},
            versions={"torch": "2.13.0"},
            cuda=cuda,
        ),
        Phase(name="evaluation", seconds=1.0, peak_allocated_bytes=2 * peak_mib * MIB if on_gpu else None),
        *(
            Phase(name=name, seconds=1.0, peak_allocated_bytes=2 * held if on_gpu else None, peak_requested_bytes=held)
            for name, held in zip(("first step", "steady"), held, strict=True)
        ),
        AttemptEnd(outcome=outcome, detail="", seconds=3.0),
    )


def session(folder, *attempts, on_gpu=True):
    """A part's session with one run and these attempts."""
    run = load_run(find_run("quick/smollm2-135m-qlora"))
    writer = TraceWriter(folder / "20261121T000000Z-1" / "quick-smollm2-135m-qlora.jsonl")
    header = {**run.model_dump(mode="json"), "features": sorted(run.features)}
    writer.write(
        RunHeader(
            schema=SCHEMA,
            tunecheck_version="1",
            started_at="2026-11-21T00:00:00+00:00",
            run=header,
            fingerprint=run.fingerprint,
            environment={"git": {"commit": "0123456789abcdef", "dirty": False}},
        )
    )
    for attempt in attempts:
        trained(writer, **attempt, on_gpu=on_gpu)


def predicted_mib(monkeypatch, tables, size):
    """Every prediction is this, without cuBLAS's workspace."""
    simulation = SimpleNamespace(first_step_bytes=1, steady_bytes=size * MIB)
    monkeypatch.setattr(tables, "predict", lambda run: SimpleNamespace(simulation=simulation))


LADDER = (
    {"peak_mib": 7900, "outcome": "out_of_memory", "cap": 8 * 2**30},
    {
        "peak_mib": 500,
        "rung": "lean",
        "cap": 8 * 2**30,
        "changes": {"training.gradient_checkpointing": True, "training.loss_chunk_tokens": 32},
    },
)


def test_every_attempt_is_set_beside_the_prediction_of_its_own_configuration(tables, monkeypatch, tmp_path, capsys):
    """The rung that finished, with the workspace that was measured; how each part ended."""
    predicted_mib(monkeypatch, tables, 480)
    session(tmp_path / "cap", *LADDER)
    git = {"commit": "0123456789abcdef", "dirty": True}
    verdict = {"started_at": "2026-11-21T00:00:00+00:00", "environment": {"git": git}, "runs": [{"outcome": "pass"}]}
    (tmp_path / "cap" / "20261121T000000Z-1" / "verdict.json").write_text(json.dumps(verdict))
    (tmp_path / "parts.tsv").write_text("cap\t0\t61\nfull\t2\t400\n")
    (tmp_path / "constants.json").write_text(json.dumps({"default": {"cublas_workspace_bytes": 45 * MIB}}))

    tables.main(tmp_path)

    text = (tmp_path / "README.md").read_text()
    assert text.startswith(
        f"<!-- Written by scripts/evidence-tables.py; do not edit by hand. -->\n# Evidence of {CARD}\n"
    )
    assert "\ntorch 2.13.0.\n" in text
    assert "| cap | pass | 61 | 1 pass | 2026-11-21T00:00:00+00:00 | 0123456789ab with changes |\n" in text
    assert "| full | ended early | 400 | - | - | - |" in text
    assert "8.0 GiB | as configured on cuda:0: out of memory, 15,800 MiB; lean on cuda:0: finished, 1,000 MiB |" in text
    assert "| lean (with probes) | 500 | 500 | 525 | +5.0% |" in text
    assert '"cublas_workspace_bytes": 47185920' in text
    assert "1 runs, 1 peaks measured on a GPU" in capsys.readouterr().out


def test_without_measured_constants_the_deduced_workspace_counts(tables, monkeypatch, tmp_path):
    """A configuration that was trained several times counts with its largest peak without probes."""
    predicted_mib(monkeypatch, tables, 500)
    rungs = [{"peak_mib": size, "purpose": "fallback step"} for size in (400, 564, 500)]
    session(tmp_path / "peaks", {"peak_mib": 600}, *rungs)
    traces = [read(path) for path in tmp_path.glob("*/*/*.jsonl")]

    (peak,) = tables.peaks_of(traces, tables._workspace_bytes({}))

    assert peak.predicted == 500 * MIB + CUBLAS_WORKSPACE.bytes
    assert (peak.how, peak.error) == ("as configured", pytest.approx(0.0))
    assert peak.name == "quick/smollm2-135m-qlora (smollm2-135m, qlora, 2 x 128)"


def test_a_configuration_that_cannot_be_predicted_keeps_its_measurement(tables, monkeypatch, tmp_path, capsys):
    """And why is said."""

    def fails(run):
        raise SuiteError("no torch here")

    monkeypatch.setattr(tables, "predict", fails)
    session(tmp_path / "quick", {"peak_mib": 300})

    tables.main(tmp_path)

    assert "| as configured (with probes) | 300 | 300 | - | - |" in (tmp_path / "README.md").read_text()
    assert "no torch here" in capsys.readouterr().err


def test_what_ran_on_a_cpu_is_no_evidence_and_says_so(tables, tmp_path):
    """In the title and in place of the tables."""
    session(tmp_path / "quick", {"peak_mib": 300}, on_gpu=False)

    tables.main(tmp_path)

    text = (tmp_path / "README.md").read_text()
    assert "# Nothing of this was measured on a GPU: no evidence" in text
    assert "No run was capped, and none had to go down its ladder." in text
    assert "No attempt told its peak of allocated memory, as none does on a CPU." in text
