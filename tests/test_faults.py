"""The suite's worth: real bugs, injected into real runs, fail on the check that names them; a healthy run passes."""

from __future__ import annotations

from pathlib import Path

import injected
import pytest
import tiny

from suite.config import find_run, load_run
from suite.finding import Finding, Status
from suite.runner import Runner

SHORT = ["training.max_steps=5", "training.micro_batch_size=1"]
"""Real weights, as few steps as the probes need: one at rate 0, one before A has a gradient, three with."""

ON_REAL_WEIGHTS = {
    "b01_reentrant_checkpointing": "lora_gradient_schedule",
    "b05_gradient_switched_off": "trainable_set",
    "b06_targets_in_some_layers": "trainable_set",
    "b12_scaling_is_alpha": "adapter_algebra",
    "b18_mean_of_means": "accumulation_oracle",
    "b22_labels_shifted_twice": "tokens_match_template",
    "b23_no_shift": "loss_oracle",
    "b26_padding_supervised": "tokens_match_template",
    "b46_reinitialised_weight": "base_matches_file",
    "b63_learning_rate_nothing": "learning_rate_trace",
    "b72_optimizer_holds_stale_tensors": "optimizer_coverage",
    "b76_adapter_saved_empty": "adapter_round_trip",
    "b114_gradients_end_with_an_evaluation": "lora_gradient_schedule",
}

ON_A_TINY_MODEL = {
    "b14_random_b": "adapters_start_neutral",
    "b25_end_token_masked_with_padding": "tokens_match_template",
    "b35_double_start_token": "tokens_match_template",
    "b48_rotary_buffer_uninitialised": "base_matches_file",
    "b61_scheduler_per_micro_batch": "learning_rate_trace",
    "b65_optimizer_never_steps": "updates_match_adamw",
    "b69_gradients_never_cleared": "accumulation_oracle",
    "b84_losses_kept_with_their_graph": "live_tensors_flat",
    "b93_train_mode_in_evaluation": "evaluation_mode",
    "b100_training_rows_held_out": "heldout_is_disjoint",
    "b103_low_precision_products": "matmul_precision",
    "b110_flipped_weight": "base_untouched",
    "b112_noise_in_forward": "forward_deterministic",
    "future_tokens_visible": "rows_isolated",
    "moved_to_another_dtype": "dtypes_as_asked",
    "same_batch_every_step": "batches_differ",
    "wrong_kernel_for_one_row": "kernel_agrees",
}


MANY_STEPS = [*tiny.SETTINGS, "training.max_steps=50", "training.gradient_accumulation_steps=1"]
"""As many as a trend needs."""


def findings(folder: Path, settings: list[str], fault: str | None) -> dict[str, Finding]:
    """All findings of the quick run with these settings, with a fault or healthy."""
    run = load_run(find_run("quick/smollm2-135m-qlora"), ["device=cpu", *settings])
    faults = (getattr(injected, fault),) if fault else ()
    trace = Runner(folder=folder, environment={}, gpu=False, say=lambda line: None, faults=faults).execute(run)
    return {name: check(trace) for name, check in run.resolved_checks().items()}


def failed(found: dict[str, Finding]) -> list[str]:
    """Names of the checks that failed."""
    return [name for name, finding in found.items() if finding.status is Status.FAILED]


@pytest.mark.parametrize("settings", [SHORT, tiny.SETTINGS, MANY_STEPS], ids=["real", "tiny", "many steps"])
def test_a_healthy_run_passes(tmp_path, settings):
    """Nothing is accused where nothing is wrong; only what random weights rule out is unjudged."""
    found = findings(tmp_path, settings, None)

    assert [str(f) for f in found.values() if f.status is Status.FAILED or (not f.passed and not f.expected)] == []
    assert len(found) >= 18


@pytest.mark.parametrize(("fault", "check"), ON_REAL_WEIGHTS.items(), ids=ON_REAL_WEIGHTS)
def test_a_fault_in_a_real_run_is_named(tmp_path, fault, check):
    """The check that names the cause fails."""
    padded = ["training.micro_batch_size=2"] if "padding" in fault else []

    assert check in failed(findings(tmp_path, [*SHORT, *padded], fault))


@pytest.mark.parametrize(("fault", "check"), ON_A_TINY_MODEL.items(), ids=ON_A_TINY_MODEL)
def test_a_fault_in_a_tiny_run_is_named(tmp_path, fault, check):
    """The same on a random two-layer model."""
    assert check in failed(findings(tmp_path, tiny.SETTINGS, fault))


def test_a_leak_of_4_kib_a_step_is_found_in_50_steps_on_the_cpu(tmp_path):
    """By the bytes of live tensors, where there is no allocator to ask."""
    found = findings(tmp_path, MANY_STEPS, "b84_four_kib_kept_a_step")["memory_flat"]

    assert found.status is Status.FAILED
    assert found.measured == pytest.approx(4096, rel=0.1)
    assert "live tensors" in found.detail
