"""The suite's worth: real bugs, injected into real runs, fail on the check that names them; a healthy run passes."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

from benchmarks.detection.bugs import FAULTS, NOT_SHOWN, Fault
from benchmarks.detection.bugs.blind import BLIND
from benchmarks.detection.bugs.blind_second import BLIND_SECOND
from benchmarks.detection.bugs.unseen import UNSEEN
from benchmarks.detection.command import main
from suite.checks import CHECKS
from suite.config import find_run, load_run
from suite.core.finding import Finding, Status
from suite.core.paths import project_folder
from suite.runner import Runner

SHORT = ["training.max_steps=5", "training.micro_batch_size=1", "training.gradient_accumulation_steps=1"]
"""Real weights, as few steps as the probes need: one at rate 0, one before A has a gradient, three with. In precision
auto, as users get it: bf16 on a CPU with native bf16, else fp32; both must name the same bugs."""
TINY_BF16 = [*tiny.SETTINGS, "training.precision=bf16"]
REAL_SETTINGS = {
    "B18": ["training.gradient_accumulation_steps=2"],
    "B26": ["training.micro_batch_size=2"],
    "X90": ["probes.generate=true"],
    "B63": [
        "evaluation.splits=[probe, heldout]",
        "checks.loss_falls.min_fall=0.001",
        "checks.heldout_improves.min_fall=0.001",
    ],
}
NAMED_ON_REAL_WEIGHTS = {
    "B23": {"first_loss_below_uniform"},
    "B63": {"loss_falls", "heldout_improves"},
    "X90": {"first_loss_below_uniform", "text_is_language"},
}
"""Checks about learning, which random weights leave unjudged."""
TRACES_ONLY = {
    "hardware_healthy": "a card",
    "card_returns_to_baseline": "a card",
    "fallback_in_order": "a card that runs out of memory; tests/runner/test_fallback_chain.py has one made up",
    "fallback_starts_fresh": "the same; trips there",
    "fallback_equals_reference": "the same; trips there",
    "vram_ceiling": "a card",
    "memory_order": "a card",
    "model_flops_utilization": "a card",
    "throughput_steady": "a card, or a machine of its own",
    "loss_keeps_falling": "a hundred steps on trained weights",
    "canary_learned": "many steps on trained weights",
}
"""Checks that no short run on a CPU can trip, and what it would take; made-up traces do in test_checks*.py."""
ON_REAL_WEIGHTS = ["B01", "B05", "B06", "B12", "B18", "B22", "B23", "B26", "B46", "B63", "B72", "B76", "X90"]
UNQUANTISED = {"B05", "B06", "B18", "B22", "B26", "B63", "B72"}
"""Those of rows, loss and optimizer, for which the base is the same in 4 bit and takes twice the time."""
EVERY = {**FAULTS, **UNSEEN, **BLIND, **BLIND_SECOND}
MANY_STEPS = [*tiny.SETTINGS, "training.max_steps=50", "training.gradient_accumulation_steps=1"]
"""As many as a trend needs."""


def findings(folder: Path, settings: list[str], fault: Fault | None) -> dict[str, Finding]:
    """All findings of the quick run with these settings, with a fault or healthy."""
    asked = fault.settings if fault else ()
    run = load_run(find_run("quick/smollm2-135m-qlora"), ["device=cpu", *settings, *asked])
    faults = (fault,) if fault else ()
    trace = Runner(folder=folder, environment={}, gpu=False, say=lambda line: None, faults=faults).execute(run)
    return {name: check(trace) for name, check in run.resolved_checks().items()}


def failed(found: dict[str, Finding]) -> set[str]:
    """Names of the checks that failed."""
    return {name for name, finding in found.items() if finding.status is Status.FAILED}


@pytest.mark.parametrize(
    "settings", [SHORT, tiny.SETTINGS, TINY_BF16, MANY_STEPS], ids=["real", "tiny", "bf16", "many steps"]
)
def test_a_healthy_run_passes(tmp_path, settings):
    """Nothing is accused where nothing is wrong; only what random weights rule out is unjudged."""
    found = findings(tmp_path, settings, None)

    assert [str(f) for f in found.values() if f.status is Status.FAILED or (not f.passed and not f.expected)] == []
    assert len(found) >= 18


@pytest.mark.parametrize("number", ON_REAL_WEIGHTS)
def test_a_fault_in_a_real_run_is_named(tmp_path, number):
    """The checks that name the cause fail."""
    plain = ["strategy=lora", "quantization=null"] if number in UNQUANTISED else []
    named = failed(findings(tmp_path, [*SHORT, *plain, *REAL_SETTINGS.get(number, [])], FAULTS[number]))

    assert named >= {*FAULTS[number].caught_by, *NAMED_ON_REAL_WEIGHTS.get(number, ())}


def first_for_each_check() -> list[str]:
    """Faults that together trip every check that any fault trips. All of them are in the committed matrix."""
    tripped: set[str] = set()
    chosen = []
    for number, fault in FAULTS.items():
        if not tripped >= {*fault.caught_by}:
            tripped |= {*fault.caught_by}
            chosen.append(number)
    return chosen


@pytest.mark.parametrize("number", first_for_each_check())
def test_a_fault_in_a_tiny_run_is_named(tmp_path, number):
    """The same on a random two-layer model."""
    assert failed(findings(tmp_path, tiny.SETTINGS, FAULTS[number])) >= set(FAULTS[number].caught_by)


@pytest.mark.parametrize("number", ["U11", "U19", "U22", "V76", "V80"])
def test_a_bug_that_was_unseen_once_is_named_now(tmp_path, number):
    """The checks were made more general for it; the others of its set are in the committed results."""
    assert failed(findings(tmp_path, tiny.SETTINGS, EVERY[number])) & set(EVERY[number].caught_by)


def test_every_check_is_tripped_by_a_fault():
    """Here, in a real child process; a check that nothing trips would be believed without reason."""
    tripped = {check for fault in FAULTS.values() for check in fault.caught_by}
    tripped |= {check for named in NAMED_ON_REAL_WEIGHTS.values() for check in named}
    tripped |= {*UNSEEN["U11"].caught_by, *BLIND_SECOND["V80"].caught_by}

    assert tripped | TRACES_ONLY.keys() == CHECKS.keys()
    assert not tripped & TRACES_ONLY.keys()


def test_a_leak_of_4_kib_a_step_is_measured_on_the_cpu(tmp_path):
    """By the bytes of live tensors, where there is no allocator to ask."""
    found = findings(tmp_path, tiny.SETTINGS, FAULTS["X74"])["memory_flat"]

    [slope] = re.findall(r"live tensors: .* bytes from step .*, \+([\d,]+) a step", found.detail)
    assert int(slope.replace(",", "")) == pytest.approx(4096, rel=0.1)


@pytest.mark.parametrize("fault", EVERY.values(), ids=EVERY)
def test_a_row_of_the_catalogue_is_complete(fault):
    """Its function exists and says what it does, its checks exist, its settings are those of a run."""
    assert len(fault.mechanism) > 20
    assert list(inspect.signature(fault.function).parameters) == ["session"]
    assert set(fault.caught_by) <= CHECKS.keys()
    assert fault.tier in ("quick", "convergence")
    load_run(find_run("quick/smollm2-135m-qlora"), [*tiny.SETTINGS, *fault.settings])


def test_ids_are_unique_and_every_function_is_used_once():
    """A second row with the same id would hide the first; a function without a row would never be run."""
    from benchmarks.detection.bugs.further import FURTHER
    from benchmarks.detection.bugs.known import KNOWN

    used = [fault.inject for fault in (*FAULTS.values(), *UNSEEN.values())]

    assert len(FAULTS) == len(KNOWN) + len(FURTHER)
    assert len(used) == len(set(used))
    assert not FAULTS.keys() & (NOT_SHOWN.keys() | UNSEEN.keys())
    assert public_functions() == set(used)


def public_functions() -> set[str]:
    """module.function for every function that takes a session alone, by reading the package's modules."""
    import importlib

    found = set()
    for kind in {fault.kind for fault in (*FAULTS.values(), *UNSEEN.values())}:
        module = importlib.import_module(f"benchmarks.detection.bugs.{kind}")
        for name, thing in vars(module).items():
            if inspect.isfunction(thing) and thing.__module__ == module.__name__ and not name.startswith("_"):
                found.add(f"{kind}.{name}")
    return found


def test_the_catalogue_is_read_without_torch():
    """Listing it takes a moment."""
    code = "import sys, benchmarks.detection.bugs; print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=project_folder()
    )

    assert result.stdout.strip() == "False"


def test_the_catalogue_can_be_listed(capsys):
    """For a person by class, and for a program."""
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    assert main(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)

    assert "adapters: " in text
    assert "B12: LoRA scales by alpha, not alpha/r (quick: adapter_algebra)" in text
    assert f"not shown: {len(NOT_SHOWN)}" in text
    assert [row["id"] for row in listed["faults"]] == list(FAULTS)
    assert listed["not_shown"] == NOT_SHOWN
    assert "X120: Dropout does not scale (quick with lora.dropout=0.1: dropout_varies)" in text
    assert all(row["does"] for row in listed["faults"])
    assert main(["list", "--of", "unseen"]) == 0
    assert "U01" in capsys.readouterr().out


def test_a_fault_can_be_run_beside_a_healthy_run(capsys):
    """The output names the check, and the status says whether it was the expected one."""
    assert main(["run", "X46"]) == 0
    text = capsys.readouterr().out

    assert "healthy: nothing failed" in text
    assert "broken: learning_rate_trace" in text
    assert "first: learning_rate_trace: step " in text
    assert "named, expected learning_rate_trace" in text


def test_a_fault_that_does_not_exist_is_a_wrong_request(capsys):
    """With the way to those that do."""
    assert main(["run", "B999"]) == 4
    assert "no fault is called 'B999': `python -m benchmarks.detection list` shows them all" in capsys.readouterr().err
