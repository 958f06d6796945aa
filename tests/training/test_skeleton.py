"""The skeleton of docs/trainers.md is a real trainer: registered like a user's own, it trains and passes."""

from __future__ import annotations

import dataclasses

import pytest
import tiny
from in_process import train_here

from tunecheck.config import find_run, load_run
from tunecheck.config.trainers import TRAINERS, TrainerInfo, plain_loop_refuses
from tunecheck.core.errors import ConfigError
from tunecheck.core.evidence import AttemptEnd, Setup, Step
from tunecheck.core.paths import project_folder


@pytest.fixture
def skeleton(monkeypatch):
    """The skeleton's row in the table, as docs/trainers.md shows it; in this process alone."""
    monkeypatch.syspath_prepend(str(project_folder() / "docs"))
    info = TrainerInfo(module="skeleton_trainer", refuses=plain_loop_refuses)
    monkeypatch.setitem(TRAINERS, "skeleton", info)
    return info


def trained(folder, *settings):
    """A tiny run by the skeleton, and its trace."""
    run = load_run(find_run("quick/smollm2-135m-qlora"), [*tiny.SETTINGS, "trainer=skeleton", *settings])
    return run, train_here(run, folder)


@pytest.mark.usefixtures("skeleton")
def test_the_skeleton_passes_the_checks_of_quick_and_resumes(tmp_path):
    """Every check of the tier, with a checkpoint of a trainer that has no gradient scaler."""
    run, trace = trained(tmp_path, "probes.resume_from=2", "probes.read_back=true", "probes.merge=true")
    findings = [check(trace) for check in run.resolved_checks().values()]

    assert [attempt.all(AttemptEnd) or attempt.end.outcome for attempt in trace.attempts] == ["finished"] * 4
    assert [str(f) for f in findings if not f.passed and not f.expected] == []
    assert sum(f.passed for f in findings) >= 40
    assert [step.step for step in trace.last("resume").all(Step)] == list(range(2, run.training.max_steps))


def test_what_a_trainer_declares_is_in_the_trace(tmp_path, skeleton, monkeypatch):
    """AdamW's formula is not asked of a trainer that declares another optimizer; that it built another one is found."""
    monkeypatch.setitem(TRAINERS, "skeleton", dataclasses.replace(skeleton, optimizer="Lion"))
    run, trace = trained(tmp_path, "training.max_steps=2")
    checks = run.resolved_checks()
    [setup] = trace.all(Setup)

    assert (setup.optimizer, setup.declared_optimizer) == ("AdamW", "Lion")
    unjudged = checks["updates_match_adamw"](trace)
    assert unjudged.expected
    assert unjudged.detail == "the trainer declares Lion, whose update rule differs from AdamW"
    assert "the optimizer is AdamW, configured Lion" in checks["optimizer_coverage"](trace).detail


@pytest.mark.usefixtures("skeleton")
@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["training.precision=fp16"], "training.precision: should be bf16 or fp32 with trainer skeleton, which is a"),
        (["training.loss_chunk_tokens=64"], "training.loss_chunk_tokens: should be null with trainer skeleton"),
        (["training.gradient_checkpointing=true"], "training.gradient_checkpointing: should be false"),
        (["training.offload=activations"], "training.offload: should be none with trainer skeleton"),
        (["fallback=[lean, cpu]"], "fallback: should be cpu or none with trainer skeleton"),
        (["parallel.processes=2"], "parallel: should be null with trainer skeleton"),
        (
            ["strategy=full", "lora=null", "quantization=null", "training.precision=bf16"],
            "training.precision: should be fp32 with trainer skeleton",
        ),
    ],
    ids=["fp16", "chunks", "checkpointing", "offload", "fallback", "parallel", "full in bf16"],
)
def test_what_a_plain_loop_would_ignore_is_refused_when_the_run_is_read(settings, told):
    """With the key and the rule, like every other usage error."""
    with pytest.raises(ConfigError) as refused:
        load_run(find_run("quick/smollm2-135m-qlora"), [*tiny.SETTINGS, "trainer=skeleton", *settings])

    assert told in str(refused.value)
