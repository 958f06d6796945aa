"""The blind set: faults written by somebody who had seen no check, to score those that there are."""

from __future__ import annotations

from benchmarks.detection.bugs.blind.words import MUST_SAY
from benchmarks.detection.bugs.fault import Fault

__all__ = ["BLIND", "MUST_SAY"]

BLIND: dict[str, Fault] = {
    fault.id: fault
    for fault in (
        Fault(
            id="V01",
            title="Adapters pass no gradient to the layers below them",
            inject="blind.training.no_gradient_to_input",
            caught_by=("gradient_matches_loss",),
        ),
        Fault(
            id="V02",
            title="One layer's adapter stays off after an evaluation",
            inject="blind.training.adapter_off_after_evaluation",
            caught_by=("lora_gradient_schedule", "trainable_moved", "adapters_applied"),
        ),
        Fault(
            id="V03",
            title="Label smoothing in the training loss that nobody asked for",
            inject="blind.training.label_smoothing",
            caught_by=("loss_oracle", "accumulation_oracle", "gradient_matches_loss"),
        ),
        Fault(
            id="V04",
            title="The loss is taken of soft-capped logits",
            inject="blind.training.soft_capped_logits",
            caught_by=("loss_oracle", "accumulation_oracle", "evaluation_oracle"),
        ),
        Fault(
            id="V05",
            title="The window's loss is divided by a count taken from its first micro-batch",
            inject="blind.training.denominator_of_first_micro_batch",
            caught_by=("loss_oracle", "accumulation_oracle", "supervised_tokens"),
        ),
        Fault(
            id="V06",
            title="Accumulation repeats the first micro-batch",
            inject="blind.training.first_micro_batch_repeated",
            caught_by=("row_order", "batches_differ"),
        ),
        Fault(
            id="V07",
            title="The answer's first token is not supervised",
            inject="blind.rows.first_answer_token_ignored",
            caught_by=("tokens_match_template", "supervised_tokens"),
            seen_in="lm-sys/FastChat#3061",
        ),
        Fault(
            id="V08",
            title="Long rows are cut without a word",
            inject="blind.rows.long_rows_cut",
            caught_by=("tokens_match_template", "supervised_tokens"),
        ),
        Fault(
            id="V09",
            title="Answers are tokenised with a space before them",
            inject="blind.rows.answers_begin_with_space",
            caught_by=("tokens_match_template",),
        ),
        Fault(
            id="V10",
            title="Half of the held-out rows are training rows",
            inject="blind.rows.training_rows_held_out",
            caught_by=("heldout_is_disjoint", "tokens_match_template"),
            settings=("evaluation.splits=[probe, heldout]",),
        ),
        Fault(
            id="V11",
            title="Every epoch has the order of the first",
            inject="blind.rows.same_order_every_epoch",
            caught_by=("row_order",),
            seen_in="lucidrains/DALLE-pytorch#230",
            settings=("data.train_rows=16",),
        ),
        Fault(
            id="V12",
            title="The offset of doubly quantised scales is rounded to bf16",
            inject="blind.model.offset_in_bf16",
            caught_by=("kernel_agrees", "base_matches_file", "quantization_as_asked"),
            seen_in="bitsandbytes-foundation/bitsandbytes#1971",
        ),
        Fault(
            id="V13",
            title="Every down_proj is left unquantised",
            inject="blind.model.modules_not_quantised",
            caught_by=("quantization_as_asked",),
        ),
        Fault(
            id="V14",
            title="A tied head is a separate copy that does not learn",
            inject="blind.model.head_untied",
            caught_by=("base_matches_file", "optimizer_coverage", "trainable_moved", "trainable_set"),
            seen_in="axolotl-ai-cloud/axolotl#577",
            settings=(
                "strategy=full",
                "lora=null",
                "quantization=null",
            ),
        ),
        Fault(
            id="V15",
            title="Rotary frequencies are rounded to bf16",
            inject="blind.model.rotary_frequencies_in_bf16",
            caught_by=("base_matches_file", "forward_matches_architecture"),
            seen_in="huggingface/transformers#25681",
        ),
        Fault(
            id="V16",
            title="Attention forgets what is more than 40 tokens back",
            inject="blind.model.sliding_window",
            caught_by=("forward_matches_architecture",),
        ),
        Fault(
            id="V17",
            title="Key and value heads are repeated in the wrong order in the last layer",
            inject="blind.model.heads_grouped_in_wrong_order",
            caught_by=("forward_matches_architecture",),
        ),
        Fault(
            id="V18",
            title="Recomputed activations have other dropout masks",
            inject="blind.model.dropout_drawn_again",
            caught_by=("gradient_matches_loss", "dropout_varies", "recomputation_equals"),
            seen_in="allenai/OLMo-core#828",
            settings=(
                "training.gradient_checkpointing=true",
                "lora.dropout=0.1",
            ),
        ),
        Fault(
            id="V19",
            title="Adam without bias correction",
            inject="blind.steps.no_bias_correction",
            caught_by=("updates_match_adamw",),
            seen_in="Oneflow-Inc/oneflow#5960",
        ),
        Fault(
            id="V20",
            title="Adam's second moment is kept in bf16",
            inject="blind.steps.second_moment_in_bf16",
            caught_by=("updates_match_adamw",),
        ),
        Fault(
            id="V21",
            title="The last layer is updated with the last step's gradient",
            inject="blind.steps.last_layer_a_step_late",
            caught_by=("updates_match_adamw",),
        ),
        Fault(
            id="V22",
            title="The schedule is planned over micro-batches",
            inject="blind.steps.schedule_over_micro_batches",
            caught_by=("learning_rate_trace",),
        ),
        Fault(
            id="V23",
            title="Gradients are clipped tensor by tensor",
            inject="blind.steps.clipped_one_by_one",
            caught_by=("updates_match_adamw", "gradient_norm_reported"),
        ),
        Fault(
            id="V24",
            title="Trained weights are rounded to bf16 after every step",
            inject="blind.steps.weights_rounded_to_bf16",
            caught_by=("updates_match_adamw", "dtypes_as_asked"),
        ),
        Fault(
            id="V25",
            title="A resumed optimizer counts its steps from zero",
            inject="blind.artefacts.step_count_lost_on_resume",
            caught_by=("resume_equals",),
            seen_in="NVIDIA-NeMo/Automodel#763",
            tier="convergence",
        ),
        Fault(
            id="V26",
            title="The saved weights are those before the last step",
            inject="blind.artefacts.saved_before_last_step",
            caught_by=("adapter_round_trip", "adapter_reads_back"),
        ),
        Fault(
            id="V27",
            title="The saved adapter has another alpha",
            inject="blind.artefacts.alpha_lost_on_save",
            caught_by=("adapter_round_trip", "adapter_reads_back"),
            seen_in="ml-explore/mlx-examples#623",
        ),
        Fault(
            id="V28",
            title="The merge ignores rsLoRA's scale",
            inject="blind.artefacts.merged_without_rslora",
            caught_by=("merge_keeps_function",),
            seen_in="paiml/aprender#2189",
            settings=("lora.use_rslora=true", "probes.merge=true"),
            tier="convergence",
        ),
        Fault(
            id="V29",
            title="The adapter is merged twice",
            inject="blind.artefacts.merged_twice",
            caught_by=("merge_keeps_function",),
            tier="convergence",
        ),
        Fault(
            id="V30",
            title="Evaluation is a mean of batch means",
            inject="blind.artefacts.mean_of_batch_means",
            caught_by=("evaluation_oracle",),
            seen_in="huggingface/transformers#39241",
            settings=(
                "evaluation.rows=4",
                "evaluation.batch_size=1",
            ),
        ),
        Fault(
            id="V31",
            title="Evaluation counts the prompt too",
            inject="blind.artefacts.prompt_evaluated",
            caught_by=("evaluation_oracle",),
        ),
        Fault(
            id="V32",
            title="Greedy decoding has a repetition penalty",
            inject="blind.artefacts.repetition_penalty",
            caught_by=("generation_is_greedy",),
            tier="convergence",
        ),
        Fault(
            id="V33",
            title="The served prompt lacks the template's last newline",
            inject="blind.artefacts.served_prompt_lacks_newline",
            caught_by=("tokens_match_template", "generation_is_greedy"),
            tier="convergence",
        ),
        Fault(
            id="V34",
            title="Tokens decoded with the cache are one position off",
            inject="blind.artefacts.decoded_one_position_late",
            caught_by=("generation_is_greedy",),
            seen_in="unslothai/unsloth#3699",
            tier="convergence",
        ),
        Fault(
            id="V35",
            title="Predictions of training steps are kept for ever",
            inject="blind.figures.predictions_kept",
            caught_by=("memory_flat", "live_tensors_flat"),
        ),
        Fault(
            id="V36",
            title="A key-value cache is filled in every training step",
            inject="blind.figures.cache_filled_in_training",
            caught_by=("memory_flat", "live_tensors_flat", "attention_as_asked"),
            seen_in="huggingface/transformers#35648",
        ),
        Fault(
            id="V37",
            title="The adapters' start does not come from the seed",
            inject="blind.steps.adapters_not_seeded",
            caught_by=("repeat_equals",),
            tier="convergence",
        ),
        Fault(
            id="V38",
            title="The learning rate logged is the next step's",
            inject="blind.figures.learning_rate_of_next_step",
            caught_by=("learning_rate_trace",),
        ),
        Fault(
            id="V39",
            title="The loss logged is a running mean",
            inject="blind.figures.smoothed_loss",
            caught_by=("loss_oracle",),
        ),
        Fault(
            id="V40",
            title="The tokens logged include the padding",
            inject="blind.figures.padding_counted",
            caught_by=("supervised_tokens",),
        ),
    )
}
"""In the order of their classes. The checks that ought to name each were filled in from MUST_SAY, by another hand."""
