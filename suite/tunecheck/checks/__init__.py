"""The table of checks, in the order of a training. One file per subject; a key is its class name in snake case."""

import re
from collections.abc import Collection, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from tunecheck.core.check import NAMED, Check
from tunecheck.core.extensions import EXTENSION_CHECKS, extensions
from tunecheck.core.spelling import nearest

_IN_ORDER = """
machine: hardware_healthy, device_as_configured, fallback_in_order, fallback_starts_fresh, dtypes_as_configured
machine: fp16_gradients_scaled, attention_as_configured, checkpointing_as_configured
what learns: trainable_set, parameters_counted, optimizer_coverage
base: quantization_as_configured, usual_tensors_learn, base_matches_file, state_dict_keys_match, kernel_agrees
base: matmul_precision
forward: forward_deterministic, forward_matches_architecture, rows_isolated, first_loss_below_uniform
adapters: adapters_start_neutral, adapters_start_random, adapter_algebra
rows: heldout_is_disjoint, tokens_match_template, supervised_tokens, batches_differ, row_order, resumed_as_configured
rows: rows_trained_once, epochs_shuffled, mask_and_positions, labels_as_configured, batch_as_configured
rows: rows_come_once, batches_change, inputs_scaled, workers_differ, rows_whole, answers_end, written_answers_end
rows: pairs_differ, better_answers_raised, no_loss_on_padding, padding_hidden, rows_reach_loss, no_target_leakage
rows: as_expected
forward: dropout_varies, randomness_varies, dropout_differs_by_rank
gradients: gradients_cleared, calls_in_order
forward: state_in_training
loss: loss_receives_logits, loss_normalised_over_accumulation, loss_oracle, loss_logged, accumulation_oracle
loss: gradients_averaged
gradients: weight_gradients, gradient_matches_loss, recomputation_equals, lora_gradient_schedule, replicas_equal
gradients: shards_even, gradient_norm_reported, clipping_leaves_gradients, ranks_report_alike
optimizer: rates_as_configured, learning_rate_trace, schedule_ends, steps_applied, loss_moves, updates_match_adamw
optimizer: finite, trainable_moved
base: base_untouched, weights_change_only_in_steps, weights_in_use
evaluation: evaluation_rows_unseen, evaluation_oracle, evaluation_reported, evaluation_mode
evaluation: perplexity_below_vocabulary
adapters: adapters_applied
saving: saved_by_one_rank, adapter_round_trip, adapter_reads_back, merge_keeps_function, export_reads_back
saving: saved_as_trained
learning: settings_usual, values_used, names_agree, lists_stay_paired, best_weights_kept, modes_switched
learning: loss_terms_whole, means_whole
memory: live_tensors_flat, memory_flat, vram_ceiling, memory_order
speed: seconds_reported, throughput_steady, ranks_keep_pace, model_flops_utilization
memory: memory_returned, card_returns_to_baseline
learning: loss_falls, loss_keeps_falling, heldout_improves, generation_is_greedy, text_is_language, canary_learned
learning: fallback_equals_reference
repeats: repeat_equals, resume_equals, rescale_equals
"""
"""Subjects with their checks, in the order of a training: the first failure of a report is the nearest to the cause."""


_DEFINED = [vars(import_module(f"{__name__}.{file.name}")).values() for file in iter_modules(__path__)]
_KINDS = (found for defined in _DEFINED for found in defined if isinstance(found, type) and issubclass(found, Check))
_CLASSES = {check.key(): check for check in _KINDS}
_SUBJECT_OF = {
    **{_CLASSES[name]: subject for subject, names in re.findall("(.+): (.+)", _IN_ORDER) for name in names.split(", ")},
    **{check: subject for subject, check in extensions(EXTENSION_CHECKS)},
}
CHECKS: dict[str, type[Check]] = {check.key(): check for check in _SUBJECT_OF}
SUBJECTS: dict[str, str] = {check.key(): subject for check, subject in _SUBJECT_OF.items()}
"""Check to what it is about, in the words of a verdict."""


def asked_of(features: Collection[str], settings: Mapping[str, Any]) -> dict[str, Check]:
    """Return every check that applies to a run with these features, with its limits, in the table's order.

    `settings` maps a check to its limits, or to "off". Raises ValueError for a check that does not exist or does not
    apply to the run.
    """
    if problems := [problem for name in settings if (problem := problem_with(name, features))]:
        raise ValueError("; ".join(problems))
    return {
        name: check(**(settings.get(name) or {}))
        for name, check in CHECKS.items()
        if check.features() <= {*features, *([NAMED] if name in settings else [])} and settings.get(name) != "off"
    }


def problem_with(name: str, features: Collection[str]) -> str | None:
    """Return why this check does not apply to a run with these features, in a sentence; None when it does."""
    if name not in CHECKS:
        return f"no check is called {name!r}{nearest(name, CHECKS) or '; `tunecheck explain` lists all'}"
    if lacking := sorted(CHECKS[name].features() - {*features, NAMED}):
        return f"check {name!r} does not apply to this run: it has no {', '.join(lacking)}"
    return None
