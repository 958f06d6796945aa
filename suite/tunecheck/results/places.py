"""The code of a watched script that a failed check points to: what it overrides or hands over of the check's matter."""

from __future__ import annotations

from tunecheck.core.errors import MissingEvidence
from tunecheck.core.evidence import UserCode
from tunecheck.core.finding import Place
from tunecheck.core.trace import Trace

DATA = ("data_collator", "formatting_func", "get_train_dataloader", "_get_train_sampler", "get_batch_samples")
LOSS = ("compute_loss", "compute_loss_func", "training_step", "_prepare_inputs")
OPTIMIZER = ("create_optimizer", "create_optimizer_and_scheduler", "get_decay_parameter_names")
EVALUATION = ("evaluate", "evaluation_loop", "prediction_step", "compute_metrics", "preprocess_logits_for_metrics")
STEP = ("callback", "training_step")
ROLES: dict[str, tuple[str, ...]] = {
    "mask_and_positions": DATA,
    "labels_as_declared": DATA,
    "batch_as_declared": DATA,
    "supervised_tokens": DATA,
    "as_expected": DATA,
    "rows_come_once": DATA,
    "rows_whole": DATA,
    "answers_end": DATA,
    "loss_oracle": LOSS,
    "loss_is_divided": LOSS,
    "scores_unnormalised": LOSS,
    "accumulation_oracle": (*LOSS, "callback"),
    "weight_gradients": (*LOSS, "callback"),
    "loss_logged": ("log", *LOSS),
    "loss_moves": LOSS,
    "finite": LOSS,
    "optimizer_coverage": OPTIMIZER,
    "rates_as_declared": OPTIMIZER,
    "updates_match_adamw": (*OPTIMIZER, *STEP),
    "trainable_moved": (*OPTIMIZER, *STEP),
    "learning_rate_trace": ("create_scheduler", "create_optimizer_and_scheduler", *STEP),
    "steps_applied": ("create_scheduler", *STEP),
    "calls_in_order": STEP,
    "gradients_cleared": STEP,
    "state_in_training": (*STEP, *EVALUATION),
    "base_untouched": STEP,
    "changed_by_steps_alone": STEP,
    "evaluation_reported": (*EVALUATION, "callback"),
    "adapter_round_trip": ("_save", "save_model", "_save_checkpoint"),
    "repeat_equals": DATA,
    "resume_equals": (*DATA, "_load_from_checkpoint", "_load_optimizer_and_scheduler", "callback"),
}
"""Check to the parts of a script that it is about. Every check may point to where the script trains."""
FALLBACK = ("script",)


def places_of(trace: Trace, check: str) -> tuple[Place, ...]:
    """Return the code that a failure of this check points to, the likeliest first; nothing for a run of the suite's."""
    try:
        written = trace.main.all(UserCode)
    except MissingEvidence:
        return ()
    for roles in (ROLES.get(check, ()), FALLBACK):
        if found := [_place(code) for role in roles for code in written if code.role == role]:
            return tuple(found)
    return ()


def _place(code: UserCode) -> Place:
    """Return where this code is; callbacks are told apart by their names."""
    return Place(what=code.name if code.role == "callback" else code.role, file=code.file, line=code.line)
