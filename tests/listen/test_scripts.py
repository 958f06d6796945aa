"""Trainings as users write them under watch, in fp32 and bf16 on the CPU: mistakes are named, healthy ones pass.

A part of benchmarks/scripts; the command runs all of them.
"""

from __future__ import annotations

import re

import pytest
from rich.console import Console

from benchmarks.scripts.bugs import MISTAKES
from benchmarks.scripts.chats import CHATS
from benchmarks.scripts.healthy import HEALTHY
from benchmarks.scripts.parts import one_micro_batch, other
from benchmarks.scripts.plain.healthy import against_a_copy, best_kept, classes, contrastive, guarded, muon, nano
from benchmarks.scripts.practices import PRACTICES
from benchmarks.scripts.recipes import RECIPES
from benchmarks.scripts.script import Script, judged, padded, plain_loop
from benchmarks.scripts.strangers import STRANGERS
from benchmarks.scripts.unusual import UNUSUAL
from tunecheck.report.terminal import print_report
from tunecheck.results import Report

NAMED = (
    "labels_shifted",
    "end_masked_with_padding",
    "same_batch",
    "means_averaged",
    "adapters_frozen_above",
    "scaling_doubled",
    "layer_initialised_again",
    "optimizer_of_another_model",
    "schedule_stepped_twice",
    "base_noised",
    "evaluation_summed",
    "log_scaled",
    "half_saved",
    "resume_not_handed_over",
    "one_batch_evaluated",
    "loop_never_clears",
    "loop_same_batch",
    "loop_in_eval_mode",
    "loop_state_lost",
    "loop_steps_twice",
    "micro_batches_cleared",
    "alone_head_left_out",
    "alone_left_in_eval",
    "alone_rounded",
    "alone_part_detached",
    "alone_window_reaches_ahead",
    "alone_divergence_of_probabilities",
    "alone_against_itself",
    "alone_first_batch_again",
    "alone_seeded_in_each_step",
    "alone_never_in_train_mode",
    "answers_masked",
    "last_position_is_padding",
    "decoder_given_labels",
    "decoder_padding_learned",
    "mask_without_triangle",
    "loop_schedule_per_micro_batch",
    "schedule_of_one_epoch",
    "loop_padding_without_mask",
    "evaluated_rows_trained",
    "target_misspelled",
    "loop_means_averaged",
    "loop_clipped_in_window",
    "alone_schedule_of_micro_batches",
    "alone_targets_shifted_twice",
)
PASSED = (
    "classes of rows",
    "GPT-2, adapters",
    "Mamba",
    "autocast",
    "neftune",
    "loop, autocast",
    "evaluation, dropout",
    "rank pattern",
    "rank pattern, dropout",
    "biases of what is adapted",
    "dora of embeddings, bf16 weights",
    "second adapter by OLoRA",
    "Falcon, adapters, a token more",
    "experts, the router's loss, evaluation",
    "norm saved",
    "full, autocast",
    "restarts",
    "sgd",
    "left padding",
    "callback that samples",
    "loop, steps within the backward pass",
    "loop, three tokens",
    "tokens learned, tied",
    "loop, packed by a mask",
    "loop, slow weights",
    "loop, dropout",
    "loop, accumulation",
    "loop, scaled",
    "loop, own cross entropy of shifted rows",
    "loop, closure",
    "loop, several optimizers",
    "loop, penalty",
    "loop, all parameters",
    "own smoothing",
    "IA3",
    "vocabulary filled up, adapters",
    "loop, sharpness aware",
    "loop, autocast within",
    "loop, adapters by hand",
    "loop, sums divided later",
    "AdaLoRA",
    "BERT, decay",
    "sampler with weights",
    "rows as they are",
    "optimizer by its class",
    "4 bits, biases",
    "added tokens, some in rows",
    "tied copies saved",
    "recomputation switched",
    "own dropout, checkpointed",
    *UNUSUAL,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # the scripts' libraries' own


MEANT = {
    "loop_same_batch",
    "alone_first_batch_again",
    "evaluated_rows_trained",
    "target_misspelled",
    "loop_means_averaged",
    "loop_clipped_in_window",
    "alone_schedule_of_micro_batches",
    "alone_seeded_in_each_step",
    "alone_never_in_train_mode",
    "alone_targets_shifted_twice",
    "layer_initialised_again",
    "evaluation_summed",
    "one_batch_evaluated",
}
"""Those that some trainings mean: a test of a loop's code, say, learns one batch by heart."""
NO_WHOLE_GRADIENT = "loop, steps within the backward pass"
"""A healthy training of which a part of the core cannot be judged."""


@pytest.mark.parametrize("name", NAMED)
def test_a_mistake_in_a_script_is_named(name, tmp_path):
    """One of the checks that are about it fails, or suspects it where it may be meant."""
    script = Script()
    MISTAKES[name].change(script)
    row = judged(script, tmp_path)

    told = [*row.suspected, *row.failed]
    assert row.outcome == ("pass" if name in MEANT else "fail")
    assert {finding.check for finding in told} & MISTAKES[name].named_by


def test_a_decoder_that_learns_the_padding_of_its_tokenizer_is_named(tmp_path):
    """Its model's configuration names another token, as one left at its default does."""
    script = Script()
    MISTAKES["decoder_padding_learned"].change(script)

    def collate(tokenizer, rows):
        batch = padded(tokenizer, [{**row, "labels": row["input_ids"]} for row in rows])
        return {**batch, "labels": batch["input_ids"]}

    script.collate = collate

    assert "no_loss_on_padding" in {finding.check for finding in judged(script, tmp_path).failed}


@pytest.mark.parametrize("ends", [True, False], ids=["ends", "no ends"])
@pytest.mark.parametrize("by_loop", [False, True], ids=["Trainer", "loop"])
def test_targets_of_a_decoder_without_ends_are_asked_about(ends, by_loop, tmp_path):
    """As where they are tokenized without special tokens."""
    script = Script(loop=plain_loop if by_loop else None)
    other("bart", "AutoModelForSeq2SeqLM", is_decoder=False, pad_token_id=0, eos_token_id=2)(script)
    one_micro_batch(script)

    def collate(tokenizer, rows):
        return padded(tokenizer, [{**row, "labels": row["input_ids"][: None if ends else -1]} for row in rows])

    script.collate = collate
    row = judged(script, tmp_path)

    assert row.failed == []
    copied = "no_target_leakage"  # its rows are their own targets
    assert [finding.check for finding in row.suspected if finding.check != copied] == ["written_answers_end"] * (
        not ends
    )


@pytest.mark.parametrize(
    "training",
    [nano, classes, muon, contrastive, guarded, against_a_copy, best_kept],
    ids=lambda training: training.__name__,
)
def test_a_healthy_script_without_transformers_passes(training, tmp_path):
    """By what holds for every training, its updates among it where they are AdamW's."""
    row = judged(Script(alone=training), tmp_path)

    assert [str(finding) for finding in row.failed] == []
    assert [str(finding) for finding in row.unjudged if not finding.expected] == []
    adamw = training in (nano, contrastive, guarded, against_a_copy, best_kept)
    assert ("updates_match_adamw" in {finding.check for finding in row.passed}) == adamw


@pytest.mark.parametrize("name", PASSED)
def test_a_healthy_script_passes(name, tmp_path):
    """Nothing is flagged, nothing lost, and many checks were judged."""
    script = Script()
    for change in (HEALTHY | STRANGERS | RECIPES | PRACTICES | CHATS | UNUSUAL)[name]:
        change(script)
    row = judged(script, tmp_path)

    assert [str(finding) for finding in row.failed] == []
    assert [str(finding) for finding in row.unjudged if not finding.expected] == []
    assert row.outcome == ("inconclusive" if name == NO_WHOLE_GRADIENT else "pass")
    assert ("nothing about gradients could be judged" in row.reason) is (name == NO_WHOLE_GRADIENT)
    assert len(row.passed) >= 15  # of another objective, what holds for every training


def test_a_training_that_is_not_heard_to_its_end_says_from_where_and_why(tmp_path, capsys):
    """By name in the terminal, where the other reasons are folded: the steps before a switch alone are judged."""
    script = Script()
    for change in RECIPES["layers in turn"]:
        change(script)
    row = judged(script, tmp_path)
    print_report(Report(started_at="", seconds=1.0, verdict="pass", runs=(row,)), Console(width=200))

    assert row.outcome == "pass"
    assert len(row.passed) >= 15
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search(r"not judged further: at step \d+ 9 tensors start to train \(.+?\) and 9 stop training", printed)
    assert "which no object declares: only earlier steps are judged" in printed
