"""Which failure explains which others, so that a report begins with the cause and folds its consequences.

A failure early in a step spoils what comes after it: labels that are shifted twice also give another loss, another
gradient and another update. The table names direct consequences; those of a consequence follow.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from tunecheck.checks import CHECKS
from tunecheck.checks.handed import SUMMED_IN_LOOP
from tunecheck.checks.oracles import AVERAGED, INCOMPLETE, NORMALISED
from tunecheck.core.evidence import Window
from tunecheck.core.finding import Finding, Status
from tunecheck.core.premises import Premise
from tunecheck.core.trace import Trace

ORACLES = ("loss_oracle", "gradients_averaged")
"""Loss and gradient against the suite's own."""
CONSEQUENCES: dict[str, tuple[str, ...]] = {
    "device_as_configured": ("dtypes_as_configured", "attention_as_configured", "throughput_steady", "memory_order"),
    "fallback_in_order": ("fallback_starts_fresh", "fallback_equals_reference"),
    "checkpointing_as_configured": ("recomputation_equals", "memory_order", "vram_ceiling"),
    "trainable_set": ("parameters_counted", "optimizer_coverage", "state_in_training"),
    "optimizer_coverage": ("gradients_cleared", "saved_as_trained"),
    "quantization_as_configured": ("base_matches_file", "kernel_agrees", "dtypes_as_configured", "memory_order"),
    "base_matches_file": ("forward_matches_architecture", "perplexity_below_vocabulary"),
    "state_dict_keys_match": ("base_matches_file",),
    "forward_deterministic": ("forward_matches_architecture", "adapters_start_neutral"),
    "forward_matches_architecture": ("rows_isolated", "first_loss_below_uniform"),
    "rows_isolated": ORACLES,
    "adapters_start_neutral": ("lora_gradient_schedule",),
    "adapters_start_random": ("adapter_algebra", "accumulation_oracle", "lora_gradient_schedule"),
    "adapter_algebra": ("weight_gradients", "adapter_round_trip"),
    "tokens_match_template": ("labels_as_configured",),
    "rows_whole": ("labels_as_configured",),
    "mask_and_positions": ("labels_as_configured", "forward_matches_architecture"),
    "labels_as_configured": ("supervised_tokens", "answers_end", "no_target_leakage"),
    "supervised_tokens": ("finite",),
    "no_target_leakage": ORACLES,
    "workers_differ": ("rows_come_once",),
    "state_in_training": ("randomness_varies", "dropout_varies"),
    "gradients_cleared": ("calls_in_order",),
    "calls_in_order": (
        "clipping_leaves_gradients",
        "schedule_ends",
        "steps_applied",
        "finite",
        "weights_change_only_in_steps",
    ),
    "loss_receives_logits": ORACLES,
    "loss_normalised_over_accumulation": ("lora_gradient_schedule", *ORACLES),
    "loss_oracle": ("loss_logged", "accumulation_oracle"),
    "accumulation_oracle": ("weight_gradients",),
    "finite": (
        *ORACLES,
        "no_loss_on_padding",
        "lora_gradient_schedule",
        "gradient_norm_reported",
        "updates_match_adamw",
        "evaluation_oracle",
    ),
    "recomputation_equals": ("accumulation_oracle", "lora_gradient_schedule"),
    "gradient_matches_loss": ("accumulation_oracle",),
    "lora_gradient_schedule": ("trainable_moved",),
    "clipping_leaves_gradients": ("trainable_moved",),
    "rates_as_configured": ("learning_rate_trace",),
    "learning_rate_trace": ("updates_match_adamw", "trainable_moved"),
    "steps_applied": ("learning_rate_trace",),
    "weights_in_use": ("trainable_moved",),
    "trainable_moved": ("adapters_applied", "loss_moves"),
    "weights_change_only_in_steps": ("updates_match_adamw", "base_untouched", "evaluation_reported"),
    "base_untouched": ("adapters_applied", "merge_keeps_function"),
    "evaluation_mode": ("evaluation_oracle", "evaluation_reported", "perplexity_below_vocabulary"),
    "adapters_applied": ("adapter_round_trip",),
    "saved_as_trained": ("adapter_round_trip", "adapter_reads_back", "merge_keeps_function", "export_reads_back"),
    "replicas_equal": ("ranks_report_alike",),
    "ranks_report_alike": ("gradients_averaged", "updates_match_adamw"),
    "loss_moves": ("loss_falls",),
    "loss_falls": ("loss_keeps_falling", "heldout_improves", "canary_learned"),
    "live_tensors_flat": ("memory_flat", "memory_returned", "card_returns_to_baseline"),
    "repeat_equals": ("resume_equals", "rescale_equals"),
}
"""Check to the checks that fail because of its failure, in the order of a training."""


def _no_accumulation(trace: Trace) -> bool:
    return len(trace.ranks) == 1 and all(len(window.digests) == 1 for window in trace.records(Window))


RULED_OUT: dict[str, str | Callable[[Trace], bool]] = {
    **dict.fromkeys((AVERAGED, NORMALISED, INCOMPLETE), _no_accumulation),
    "Declared label smoothing is missing.": lambda trace: not trace.run.smoothing,
    SUMMED_IN_LOOP: lambda trace: trace.holds(Premise.STEP_DECLARED),
    "Labels are shifted twice or not at all.": "no_target_leakage",
    "The mean counts padding.": "no_loss_on_padding",
    "A wrong mask or wrong positions change the model's output.": "mask_and_positions",
    "Gradients are not cleared.": "gradients_cleared",
    "The learning rate is wrong or 0.": "learning_rate_trace",
    "Steps are skipped.": "steps_applied",
    "Clipping runs at the wrong time.": "calls_in_order",
}
"""Usual cause to the check that rules it out by its pass, or to what else does."""


def plausible(finding: Finding, findings: Sequence[Finding], trace: Trace) -> Finding:
    """Return the finding with the usual causes that nothing rules out, or with all if everything is."""
    passed, meaning = {other.check for other in findings if other.passed}, finding.meaning
    for cause in (cause for cause in RULED_OUT if cause in meaning):
        if unless in passed if isinstance(unless := RULED_OUT[cause], str) else unless(trace):
            meaning = meaning.replace(cause, "").replace("  ", " ").strip()
    return replace(finding, meaning=meaning or finding.meaning)


@cache
def consequences(check: str) -> frozenset[str]:
    """Return all checks that this check's failure explains, those of its consequences included."""
    direct = CONSEQUENCES.get(check, ())
    return frozenset(direct).union(*map(consequences, direct))


def explained(findings: Sequence[Finding], *, ask: bool = False) -> list[Finding]:
    """Return the findings, each that another one explains with that one's check as `because`.

    A failure explains failures, and suspicions of a habit. A suspicion, which may be meant, explains no failure. With
    `ask`, a failure that only ignored findings explain is a suspicion: what follows from what is meant may be meant.
    """
    told = []
    for finding in findings:
        # what never learned is saved like what was just made
        habit = finding.check == "saved_as_trained" or getattr(CHECKS.get(finding.check), "convention", False)
        by = {Status.FAILED: [Status.FAILED], Status.SUSPECTED: [Status.FAILED, Status.SUSPECTED] if habit else []}
        because = _causes(finding, findings, *by.get(finding.status, ()))[:1]
        roots = _causes(finding, findings, Status.FAILED, Status.IGNORED) if finding.status is Status.FAILED else []
        told.append(replace(finding, because=because[0].check if because else ""))
        if ask and roots and all(root.status is Status.IGNORED for root in roots):
            meant = f"it may follow from {roots[0].check}, which is ignored"
            told[-1] = replace(told[-1], status=Status.SUSPECTED, meant=meant)
    return told


def _causes(finding: Finding, findings: Sequence[Finding], *statuses: Status) -> list[Finding]:
    """Return those of these statuses that explain this finding and are explained by none of the others."""
    causes = [other for other in findings if other.status in statuses and finding.check in consequences(other.check)]
    return [cause for cause in causes if not any(cause.check in consequences(other.check) for other in causes)]


def ruled_out(finding: Finding, findings: Sequence[Finding]) -> list[str]:
    """Return the checks that would explain this failure and passed."""
    return [other.check for other in findings if other.passed and finding.check in consequences(other.check)]
