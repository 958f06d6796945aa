"""What was trained is read back in a fresh process without the trainer: healthy runs, and files that lack something."""

from __future__ import annotations

import json

import pytest
import tiny

from tunecheck.config import find_run, load_run
from tunecheck.core.evidence import ReadBack
from tunecheck.core.finding import Status
from tunecheck.runner import Runner

FULL = ["strategy=full", "quantization=null", "lora=null"]
SETTINGS = [*tiny.SETTINGS, "probes.read_back=true", "training.learning_rate=1e-2"]


def trained(folder, *settings, fault=None):
    """The trace of a tiny run that reads back what it trained, and what is concluded from that."""
    run = load_run(find_run("quick/smollm2-135m-qlora"), [*SETTINGS, *settings])
    faults = (fault,) if fault else ()
    trace = Runner(folder=folder, environment={}, gpu=False, faults=faults).execute(run)
    return trace, run.resolved_checks()["adapter_reads_back"](trace)


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["strategy=lora", "quantization=null"],
        ["lora.use_dora=true", "lora.use_rslora=true", "profile=lean", "training.precision=bf16"],
        FULL,
        ["strategy=adapter_layers", *FULL[1:], "training.precision=bf16"],
    ],
    ids=["qlora", "lora", "lean dora in bf16", "full", "adapter_layers in bf16"],
)
def test_what_was_trained_reads_back(tmp_path, settings):
    """Its logits are the trained model's, and without the adapters they are others."""
    trace, finding = trained(tmp_path, *settings)

    (seen,) = trace.last("read back").all(ReadBack)
    assert finding.status is Status.PASSED, finding
    assert seen.files
    assert (seen.adapter_effect is None) == ("lora=null" in settings)


def forget_alpha(session):
    """The saved configuration names another alpha than the one that was trained with."""
    inner = session.save_adapter

    def save(session, folder):
        inner(session, folder)
        path = folder / "adapter_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "lora_alpha": 1}))

    session.save_adapter = save


def change_the_base(session):
    """The frozen base is not the file's any more: who reads the adapter beside the file gets another model."""
    session.model.get_input_embeddings().weight.data.mul_(1.5)


@pytest.mark.parametrize("fault", [forget_alpha, change_the_base])
def test_files_that_lack_something_are_found(tmp_path, fault):
    """The trainer's own process would never notice."""
    _, finding = trained(tmp_path, fault=fault)

    assert finding.status is Status.FAILED
    assert "logits differ by" in finding.detail


def test_without_the_files_nothing_is_judged(tmp_path):
    """The attempt fails, and says why."""
    _, finding = trained(tmp_path, fault=forget_to_save)

    assert finding.status is Status.UNJUDGED
    assert "adapter_config.json" in finding.detail


def forget_to_save(session):
    """Nothing is saved."""
    session.save_adapter = save_nothing


def save_nothing(session, folder):
    """A save that does nothing."""
