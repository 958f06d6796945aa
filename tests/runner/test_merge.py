"""The saved adapter is merged in a fresh process: every kind of it keeps the model's function, and faults are found."""

from __future__ import annotations

import pytest
import tiny

from benchmarks.detection.bugs import BUGS
from tunecheck.config import find_run, load_run
from tunecheck.core.evidence import Merged
from tunecheck.core.finding import Status
from tunecheck.runner import Runner

SETTINGS = [*tiny.SETTINGS, "probes.merge=true", "training.learning_rate=1e-2"]


def trained(folder, *settings, fault=None):
    """The trace of a tiny run that merges what it trained, and what is concluded from that."""
    run = load_run(find_run("quick/smollm2-135m-qlora"), [*SETTINGS, *settings])
    faults = (fault,) if fault else ()
    trace = Runner(folder=folder, environment={}, gpu=False, faults=faults).execute(run)
    return trace, run.resolved_checks()["merge_keeps_function"](trace)


@pytest.mark.parametrize(
    "settings",
    [
        ["lora.use_rslora=true", "quantization.quant_type=fp4"],
        ["lora.use_dora=true"],
        ["lora.use_dora=true", "lora.use_rslora=true", "profile=lean", "training.precision=bf16"],
        ["strategy=lora", "quantization=null"],
    ],
    ids=["rslora on fp4", "dora", "lean dora in bf16", "lora"],
)
def test_a_merged_adapter_keeps_the_models_function(tmp_path, settings):
    """Without peft and without packed weights; the training itself is not accused of anything by it."""
    trace, finding = trained(tmp_path, *settings)

    (seen,) = trace.last("merge").all(Merged)
    assert finding.status is Status.PASSED, finding
    assert seen.adapter_effect > 0.1
    assert seen.adapters_left == seen.packed_left == ()


def test_rounding_to_4bit_again_shows_in_the_logits_too(tmp_path):
    """Not only in the dtype of what is left: unpacking it afterwards would not help."""
    trace, finding = trained(tmp_path, fault=BUGS["B17"])

    (seen,) = trace.last("merge").all(Merged)
    assert len(seen.packed_left) == 14
    assert finding.measured > finding.limit


def merge_in_bf16(session):
    """The merged weights are rounded to bf16 on their way, their dtype kept."""
    inner = session.merge
    session.merge = lambda session, saved: inner(session, saved).bfloat16().float()


def leave_the_adapter_out(session):
    """What is called merged is the base."""
    session.merge = lambda session, saved: session.model.unload().dequantize()


@pytest.mark.parametrize("fault", [merge_in_bf16, leave_the_adapter_out])
def test_a_merge_that_changes_the_function_is_found(tmp_path, fault):
    """Whatever the way."""
    _, finding = trained(tmp_path, fault=fault)

    assert finding.status is Status.FAILED
    assert "merged, logits differ by" in finding.detail


def test_an_adapter_that_was_not_saved_leaves_the_merge_unjudged(tmp_path):
    """The attempt fails and says why; the training did not."""
    trace, finding = trained(tmp_path, fault=forget_to_save)

    assert trace.main.finished
    assert finding.status is Status.UNJUDGED
    assert "the merge attempt did not finish: it failed: ValueError: Can't find 'adapter_config.json'" in finding.detail


def forget_to_save(session):
    """Nothing is saved."""
    session.save_adapter = lambda session, folder: None
