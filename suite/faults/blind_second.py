"""The second blind set: faults from issue trackers, written by somebody who had seen no check, to score those."""

from __future__ import annotations

from suite.faults.blind_second_words import MUST_SAY_SECOND
from suite.faults.fault import Fault

__all__ = ["BLIND_SECOND", "MUST_SAY_SECOND"]

DROPOUT, DORA = "lora.dropout=0.1", "lora.use_dora=true"


def _fault(
    id: str, title: str, inject: str, seen_in: str, *settings: str, caught_by: str = "", tier: str = "quick"
) -> Fault:
    return Fault(
        id=id,
        title=title,
        inject=f"blind_second_{inject}",
        caught_by=tuple(caught_by.split()),
        seen_in=seen_in,
        settings=settings,
        tier=tier,
    )


BLIND_SECOND: dict[str, Fault] = {
    fault.id: fault
    for fault in (
        _fault("V41", "Long rows are cut on the left, the labels' mask stays", "rows.cut_on_the_left",
               "verl-project/verl#601"),
        _fault("V42", "A default system prompt stands before the training rows", "rows.system_prompt_in_training",
               "hiyouga/LlamaFactory#2987, huggingface/alignment-handbook#117"),
        _fault("V43", "Rows are shuffled within a small buffer only", "rows.shuffled_in_a_buffer",
               "NVIDIA/NeMo-Aligner#29, huggingface/trl#4564"),
        _fault("V44", "Rows come grouped by their length", "rows.grouped_by_length",
               "modelscope/ms-swift#10111, huggingface/transformers#9574"),
        _fault("V45", "The attention mask is read off the token ids", "rows.mask_read_off_the_ids",
               "huggingface/transformers#2862"),
        _fault("V46", "An epoch's last window is filled up with its first rows", "rows.epochs_filled_up",
               "huggingface/accelerate#125", "data.train_rows=6"),
        _fault("V47", "The rotary table is kept in bf16", "model.rotary_table_in_bf16",
               "KellerJordan/modded-nanogpt#39, huggingface/transformers#29285"),
        _fault("V48", "Norms are computed in 16 bit", "model.norms_in_sixteen_bit",
               "meta-llama/llama#1048, pytorch/pytorch#189581", "training.precision=bf16"),
        _fault("V49", "The causal mask of cached decoding is aligned to the first key",
               "model.causal_from_the_top_left", "Dao-AILab/flash-attention#282, pytorch/pytorch#108108", tier="convergence"),
        _fault("V50", "Prompts end with the end token when they are served",
               "model.prompts_end_with_the_end_token", "ml-explore/mlx-examples#818, h2oai/h2ogpt#30", tier="convergence"),
        _fault("V51", "The chunked loss loses the tokens at the chunks' borders", "loss.chunks_without_borders",
               "NVIDIA-NeMo/Automodel#3803, meta-pytorch/torchtune#1390", "training.loss_chunk_tokens=20"),
        _fault("V52", "Gradients are divided by the accumulation steps once more", "loss.gradients_divided_once_more",
               "deepspeedai/Megatron-DeepSpeed#42, huggingface/transformers#35438"),
        _fault("V53", "A fused loss ignores the gradient that it is handed", "loss.fused_loss_ignores_what_comes_back",
               "linkedin/Liger-Kernel#1298, #968"),
        _fault("V54", "A fused loss gives short answers no gradient", "loss.short_answers_without_gradient",
               "unslothai/unsloth#5230"),
        _fault("V55", "Gradients are cleared before every micro-batch", "loss.cleared_before_each_micro_batch",
               "huggingface/accelerate#641, QwenLM/Qwen3-TTS#326"),
        _fault("V56", "What is accumulated is clipped at every micro-batch", "loss.clipped_at_each_micro_batch",
               "huggingface/transformers#986, tenstorrent/tt-metal#17568"),
        _fault("V57", "Half of the adapters' tensors are spared the weight decay", "steps.decay_spares_half",
               "ArrowLuo/CLIP4Clip#11, huggingface/transformers#26152"),
        _fault("V58", "Gradients are clipped at the default, not at the run's limit", "steps.clipped_at_the_default",
               "axolotl-ai-cloud/axolotl#1381, deepspeedai/DeepSpeed#6743"),
        _fault("V59", "The norm that clips is that of half of the tensors", "steps.norm_of_a_shard",
               "pytorch/pytorch#170862, areal-project/AReaL#312"),
        _fault("V60", "The schedule ends in the middle and rises again", "steps.schedule_over_half_the_steps",
               "huggingface/transformers#35484"),
        _fault("V61", "The warm-up is applied twice", "steps.warmed_up_twice",
               "huggingface/transformers#218", "training.warmup_ratio=0.6"),
        _fault("V62", "fp16 is trained without loss scaling", "steps.fp16_without_scaling",
               "engichang1467/Open-Rig3R#35", "strategy=lora", "quantization=null", "training.precision=fp16"),
        _fault("V63", "One kind of module has another alpha", "adapters.another_alpha_by_pattern",
               "huggingface/peft#3582, #2195"),
        _fault("V64", "The adapters' dropout is asked for and never applied", "adapters.dropout_never_applied",
               "meta-pytorch/torchtune#996", DROPOUT),
        _fault("V65", "The adapters' dropout falls on base and adapter together", "adapters.dropout_on_the_sum",
               "axolotl-ai-cloud/axolotl#3528", DROPOUT),
        _fault("V66", "DoRA's magnitudes were taken of other weights", "adapters.magnitudes_of_other_weights",
               "ml-explore/mlx-examples#832", DORA),
        _fault("V67", "DoRA's norms leave out the scaling", "adapters.norms_without_scaling",
               "adapter-hub/adapters#790, huggingface/peft#1474", DORA),
        _fault("V68", "4-bit weights are quantised a second time", "model.quantised_again",
               "bitsandbytes-foundation/bitsandbytes#937, #953"),
        _fault("V69", "The saved configuration names fewer modules", "artefacts.targets_lost_on_save",
               "huggingface/peft#1323, #2118"),
        _fault("V70", "DoRA's magnitudes are not saved", "artefacts.magnitudes_not_saved",
               "NVIDIA-NeMo/Megatron-Bridge#6031", DORA),
        _fault("V71", "A resumed optimizer's averages belong to other tensors", "artefacts.moments_in_another_order",
               "Lightning-AI/pytorch-lightning#17025", tier="convergence"),
        _fault("V72", "A resumed schedule has lost its base rate", "artefacts.base_rate_lost_on_resume",
               "huggingface/nanotron#256, pytorch/pytorch#60265", tier="convergence"),
        _fault("V73", "Evaluation fills its last batch with rows that it has had", "artefacts.last_batch_filled_up",
               "huggingface/accelerate#125, huggingface/transformers#16865", "evaluation.rows=3",
               "evaluation.batch_size=2"),
        _fault("V74", "Adapters are merged into the base for each evaluation", "artefacts.merged_for_evaluation",
               "huggingface/trl#6688, OpenNMT/OpenNMT-py#2399"),
        _fault("V75", "The merge transposes square weights' part", "artefacts.merged_transposed",
               "paiml/aprender#2138, huggingface/peft#3531", "probes.merge=true", tier="convergence"),
        _fault("V76", "Unpacked 4-bit weights are kept for the backward pass", "model.unpacked_weights_saved",
               "bitsandbytes-foundation/bitsandbytes#1935"),
        _fault("V77", "Every layer is checkpointed twice", "adapters.checkpointed_twice",
               "meta-llama/llama-cookbook#740, linkedin/Liger-Kernel#1064", "training.gradient_checkpointing=true"),
        _fault("V78", "Dropout does not come from the seed", "steps.dropout_not_seeded",
               "meta-pytorch/torchtune#2335", DROPOUT, "probes.repeat_steps=3"),
        _fault("V79", "The supervised tokens reported are the last micro-batch's", "steps.last_micro_batch_counted",
               "axolotl-ai-cloud/axolotl#3688"),
        _fault("V80", "A step's time is reported for one micro-batch", "steps.seconds_of_a_micro_batch",
               "karpathy/nanochat#177"),
    )
}  # fmt: skip
"""In the order of data, model, loss, steps, adapters, artefacts, figures. The checks that ought to name each were
filled in from what checks say of themselves, before any of these was run."""
