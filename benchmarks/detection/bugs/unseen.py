"""Bugs thought up apart from the catalogue, and scored once before any check knew them: how does the suite generalise?

Each names beforehand the checks of which one would lead to it. Most are told from memory of bugs met in practice.
"""

from __future__ import annotations

from benchmarks.detection.bugs.fault import Fault


def _fault(id: str, title: str, inject: str, caught_by: str, *settings: str, tier: str = "quick") -> Fault:
    return Fault(
        id=id,
        title=title,
        inject=inject if "." in inject else f"held_out.{inject}",
        caught_by=tuple(caught_by.split()),
        settings=settings,
        tier=tier,
        seen_in="thought up, not from a thread",
    )


DROPOUT = ("lora.dropout=0.1", "training.gradient_checkpointing=true")

UNSEEN: dict[str, Fault] = {
    fault.id: fault
    for fault in (
        _fault("U01", "The last window is averaged twice", "last_window_averaged_twice",
               "loss_oracle accumulation_oracle"),
        _fault("U02", "Only the last micro-batch's loss is reported", "last_micro_batch_reported", "loss_oracle"),
        _fault("U03", "Gradients are summed in bf16", "gradients_summed_in_bf16", "accumulation_oracle"),
        _fault("U04", "Every row weighs the same, however long", "rows_weigh_the_same",
               "loss_oracle accumulation_oracle"),
        _fault("U05", "The tokenizer is another model's", "another_tokenizer",
               "tokens_match_template first_loss_below_uniform"),
        _fault("U06", "Rotary angles of another base", "held_out_models.rotary_base_of_another_model",
               "base_matches_file forward_matches_architecture"),
        _fault("U07", "Positions end at 32", "held_out_models.positions_end_early",
               "forward_matches_architecture"),
        _fault("U08", "Attention sees 24 tokens back", "held_out_models.sliding_window",
               "forward_matches_architecture"),
        _fault("U09", "Key heads repeated in the wrong order", "held_out_models.key_heads_in_another_order",
               "forward_matches_architecture"),
        _fault("U10", "Adapters on k_proj instead of v_proj", "held_out_models.adapters_on_other_modules",
               "trainable_set"),
        _fault("U11", "Every adapter starts from the same A", "held_out_models.same_a_everywhere",
               "adapters_start_random"),
        _fault("U12", "A starts a hundred times too large", "held_out_models.a_starts_too_large",
               "adapters_start_random"),
        _fault("U13", "The last step is never taken", "last_step_left_out", "updates_match_adamw steps_applied"),
        _fault("U14", "Steps with an unusual loss are left out", "unusual_steps_left_out",
               "updates_match_adamw steps_applied"),
        _fault("U15", "Gradients clipped by value", "clipped_by_value", "updates_match_adamw"),
        _fault("U16", "The schedule counts micro-batches as its length", "schedule_too_long", "learning_rate_trace"),
        _fault("U17", "Long rows silently left out", "long_rows_left_out", "row_order"),
        _fault("U18", "Rows drawn with replacement", "rows_drawn_with_replacement", "row_order"),
        _fault("U19", "Held-out rows are training rows with another answer", "heldout_questions_trained",
               "heldout_is_disjoint"),
        _fault("U20", "Noise on the embeddings while training", "held_out_models.noisy_embeddings",
               "forward_deterministic"),
        _fault("U21", "Recomputed layers draw other dropout masks", "held_out_models.recomputed_with_other_masks",
               "accumulation_oracle dropout_varies gradient_matches_loss recomputation_equals", *DROPOUT),
        _fault("U22", "A hook more at every step", "held_out_models.hooks_pile_up",
               "live_tensors_flat memory_flat throughput_steady"),
        _fault("U23", "Evaluation loss in bf16", "evaluated_in_bf16", "evaluation_oracle"),
        _fault("U24", "The saved adapter is the average of the last steps", "average_saved", "adapter_round_trip"),
        _fault("U25", "Generation with a repetition penalty", "held_out_models.repetition_penalty_left_on",
               "generation_is_greedy",
               "probes.generate=true", tier="convergence"),
        _fault("U26", "Moments pass through bf16 in the checkpoint", "moments_rounded_in_the_checkpoint",
               "resume_equals", "probes.resume_from=2", tier="convergence"),
    )
}  # fmt: skip
"""By id. Not a part of the catalogue: no check was made for them before the score in docs/detection.md was taken."""
