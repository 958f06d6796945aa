"""Checks of a training that is not ours: each passes a healthy trace and fails a faulty one. Made-up traces, fp32."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest
from traces import (
    BY_A_LOOP,
    BY_A_SCRIPT,
    LORA,
    LORA_A,
    LORA_B,
    adding,
    attempt,
    healthy,
    opened,
    with_record,
    with_run,
    without,
)

from tunecheck.checks import CHECKS
from tunecheck.core import evidence as e
from tunecheck.core.check import UNWITNESSED
from tunecheck.core.finding import Status
from tunecheck.core.trace import Trace
from tunecheck.listen.premises import OF_A_LOOP

WATCHED_FEATURES = {"user_code", "unknown_rows", "evaluates", "expectations", "resume_declared", "pairs"}
WATCHED = {name for name, check in CHECKS.items() if check.features() & WATCHED_FEATURES and not check.across_ranks}
FEATURES = ("adapters", *sorted(WATCHED_FEATURES))
MEANT = {
    ("rows_come_once", "a row twice"),
    ("mask_and_positions", "positions from 1"),
    ("inputs_scaled", "pixels up to 255"),
    ("batches_change", "one batch"),
    ("batches_change", "one class"),
    ("batches_change", "one batch in each step"),
    ("batches_change", "targets of the first batch"),
    ("batches_change", "a text that no pass reads"),
    ("batches_change", "one view twice"),
    ("batches_change", "one timestep"),
    ("batches_change", "targets in another order"),
    ("batches_change", "one text"),
    ("batches_change", "equal texts with other targets"),
    ("batches_change", "one rating"),
    ("rows_whole", "beginnings cut off"),
    ("rows_whole", "most answers cut off"),
    ("rows_whole", "some answers cut off"),
    ("rows_whole", "all of them, by a declared length"),
    ("rows_whole", "all of them, in a template that is learned"),
    ("no_loss_on_padding", "of what seems to be padding"),
    ("no_loss_on_padding", "unknown tokens"),
    ("no_loss_on_padding", "one token"),
    ("no_loss_on_padding", "means over all positions"),
    ("no_loss_on_padding", "one token again and again"),
    ("no_loss_on_padding", "labels of CTC that are filled up"),
    ("no_loss_on_padding", "a mask without the first label"),
    ("no_loss_on_padding", "a mask that goes on"),
    ("rows_whole", "targets cut off"),
    ("padding_hidden", "generating behind padding"),
    ("no_target_leakage", "targets of the input's column"),
    ("no_target_leakage", "a mask that is a token"),
    ("no_target_leakage", "tokens that are not masked"),
    ("padding_hidden", "a mask of ones"),
    ("padding_hidden", "a mask of other tokens"),
    ("better_answers_raised", "columns exchanged"),
    ("better_answers_raised", "half of the pairs"),
    ("better_answers_raised", "advantages"),
    ("better_answers_raised", "equal pairs"),
    ("better_answers_raised", "no reference"),
    ("better_answers_raised", "tokens of other rows"),
    ("evaluation_reported", "another loss"),
    ("evaluation_reported", "not a number"),
    ("evaluation_reported", "gradients"),
    ("evaluation_reported", "some rows"),
    ("rows_reach_loss", "the first position"),
    ("rows_reach_loss", "prompts alone"),
    ("rows_reach_loss", "passages without gradients"),
    ("rows_reach_loss", "tags one early"),
    ("rows_reach_loss", "tags one late"),
    ("rows_reach_loss", "tags counted by words"),
    ("no_target_leakage", "labels that are the tokens before"),
    ("saved_as_trained", "an empty dictionary"),
    ("saved_as_trained", "the base within adapters"),
    ("rows_reach_loss", "answers from their third token on"),
    ("rows_come_once", "one row alone, cut off"),
    ("loss_receives_logits", "rows against themselves"),
    ("loss_receives_logits", "two temperatures"),
    ("loss_receives_logits", "outputs against all targets"),
    ("loss_receives_logits", "targets above 1"),
    ("loss_receives_logits", "logits in nll_loss"),
    ("loss_receives_logits", "behind a ReLU"),
    ("loss_receives_logits", "ends learn the starts"),
    ("loss_receives_logits", "another policy's rows"),
    ("loss_receives_logits", "distance that is rewarded"),
    ("loss_receives_logits", "the smaller loss"),
    ("loss_receives_logits", "a policy that is its own reference"),
    ("loss_receives_logits", "noise drawn anew"),
    ("loss_receives_logits", "a view in place of a transpose"),
    ("labels_as_configured", "an end that is padding"),
    ("labels_as_configured", "a start within"),
    ("labels_as_configured", "a prompt twice"),
    ("labels_as_configured", "a user's turns"),
    ("labels_as_configured", "marks of the model's turns"),
    ("labels_as_configured", "prompts that show their answers"),
    ("labels_as_configured", "answers that begin astray"),
    ("labels_as_configured", "answers without their beginning"),
    ("labels_as_configured", "prompts like answers"),
    ("rows_reach_loss", "prompts like answers"),
    ("rows_reach_loss", "rows that a view mixes"),
    ("loss_receives_logits", "a temperature for a scale"),
    ("loss_receives_logits", "one loss twice"),
    ("loss_receives_logits", "a target that learns"),
    ("loss_receives_logits", "a part of the output is not read"),
    ("loss_receives_logits", "weights of other classes"),
    ("loss_receives_logits", "a scale exponentiated twice"),
    ("loss_receives_logits", "positives of other texts"),
    ("loss_receives_logits", "positions that compete"),
    ("answers_end", "no mark of the assistant's turn"),
    ("answers_end", "cut off alike"),
    ("answers_end", "new lines"),
    ("answers_end", "a loss of the script's own"),
    ("written_answers_end", "no ends"),
    ("written_answers_end", "no ends, all of one length"),
    ("written_answers_end", "none in half of the steps"),
    ("written_answers_end", "ends of a model of the script's own"),
    ("written_answers_end", "padding is learned"),
    ("written_answers_end", "two start tokens"),
    ("rows_whole", "pairs cut off"),
    ("rows_whole", "texts that lose most of their tokens"),
    ("pairs_differ", "questions again"),
    ("pairs_differ", "prompts again, rated"),
    ("no_target_leakage", "labels that are shifted twice"),
    ("randomness_varies", "a seed in every step"),
    ("clipping_leaves_gradients", "to nearly nothing"),
    ("evaluation_rows_unseen", "a part of the training"),
    ("saved_as_trained", "an adapter that was just made"),
    ("saved_as_trained", "the base over the trained model"),
    ("saved_as_trained", "a model that is loaded again"),
    ("saved_as_trained", "an average of the start alone"),
    ("saved_as_trained", "an average that is never updated"),
    ("saved_as_trained", "the base behind the trained model"),
    ("saved_as_trained", "the start alone"),
    ("saved_as_trained", "a head alone"),
    ("saved_as_trained", "all but a head"),
    ("saved_as_trained", "a teacher"),
    ("saved_as_trained", "the highest perplexity"),
    ("saved_as_trained", "the lowest F1"),
    ("state_dict_keys_match", "itself"),
    ("state_dict_keys_match", "an empty one"),
    ("schedule_ends", "made for micro-batches"),
    ("schedule_ends", "a warm-up as long as the training"),
    ("schedule_ends", "a warm-up alone"),
    ("schedule_ends", "made for one epoch"),
    ("schedule_ends", "a decay of epochs in each step"),
    ("schedule_ends", "a slower one"),
    ("schedule_ends", "never stepped"),
    ("values_used", "a length that masks nothing"),
    ("values_used", "a result dropped"),
    ("names_agree", "a mask of the other answer"),
    ("lists_stay_paired", "texts shuffled alone"),
    ("best_weights_kept", "the largest loss"),
    ("modes_switched", "no way back"),
    ("loss_terms_whole", "a number in a sum"),
    ("means_whole", "a sum that goes on"),
    ("settings_usual", "a share that is kept"),
    ("settings_usual", "betas exchanged"),
    ("settings_usual", "norms decay"),
    ("settings_usual", "not a number"),
}
"""Faults that some trainings mean."""
ALL_MET = {"supervised": (), "unsupervised": ()}
EXPECTED = {
    "supervised": "</s>$",
    "unsupervised": "Question",
    "trained": "lora_B",
    "frozen": "embed",
    "accumulation": 2,
}


def of_classes(targets):
    """Four steps of a healthy training, whose rows are of these classes."""
    many = len(targets) // 4
    parts = [tuple(targets[step * many : (step + 1) * many]) for step in range(4)]
    return [e.StepInputs(step=step, digests=(f"batch {step}",), targets={"3": parts[step]}) for step in range(4)]


def aiming(aim, digests=lambda step: (f"batch {step}",), steps=4):
    """Steps whose rows have these targets, by their digests."""
    return [e.StepInputs(step=step, digests=digests(step), aims=(aim(step),)) for step in range(steps)]


def rows(**changes):
    """The rows of a healthy training, but for these."""
    seen = {
        "rows": 24,
        "dataset_rows": 40,
        "repeated": (),
        "uncertain": 0,
        "end_tokens_supervised": 24,
        "end_tokens_masked": 0,
        "first_token_supervised": 0,
        "unsupervised": 0,
        "expected": ALL_MET,
    }
    return e.RowsGiven(**{**seen, **changes})


def span(number, **changes):
    """The part of a healthy row that is learned, but for this."""
    seen = {
        "micro_batch": number // 2,
        "row": f"row {number}",
        "answer": f"answer {number}",
        "tokens": 30 + number,
        "learned": 10 + number % 7,
        "first": 20,
        "column": 30 + number,
        "behind": 0,
        "stretches": 1,
        "documents": 1,
        "last": "</s>",
        "ended": True,
    }
    return e.RowSpan(**{**seen, **changes})


def spans(change=lambda number: {}, *, count=24, **others):
    """The rows of a healthy training, each with this change of its own."""
    made = tuple(span(number, **change(number)) for number in range(count))
    return e.RowSpans(**{"rows": made, "end_tokens": (2,), **others})


def cut(number):
    """A row of the longest length whose end is not supervised."""
    return {"tokens": 64, "ended": False}


def loose(number):
    """A row whose answer has no end token."""
    return {"ended": False, "last": "."}


def positions(**changes):
    """At which positions the loss of a healthy training pulls, but for these."""
    return e.PositionGradients(
        **{
            "step": 0,
            "padded": 12,
            "padding_share": 0.0,
            "padding_both_ways": 12,
            "tokens": 60,
            "raising": 40,
            "raising_own": 1,
            "asked_for_next": 4,
            **changes,
        }
    )


def used(**changes):
    """What a healthy loss uses of the rows of a model of the script's own, but for these."""
    return e.RowsUsed(
        **{"rows": 24, "beginnings": 0, "begun_late": 0, "answers": 20, "alike": 20, "loose": 0, **changes}
    )


def written(**changes):
    """What a healthy training saves, but for these."""
    return e.Written(**{"own": True, "tensors": 8, "trained": 8, "earlier": (), "other": 0, **changes})


def loaded(**changes):
    """A state dict that fits the model, but for these."""
    return e.StateLoaded(**{"into": "GPT", "offered": 12, "taken": 12, "misnamed": (), **changes})


def handed_out(**changes):
    """Batches that two workers have handed out, but for these."""
    return e.WorkerBatches(**{"workers": 2, "rounds": 5, "distinct": 5, "alike": 1, **changes})


def given(**numbers):
    """Settings of these kinds."""
    settings = (e.Setting(kind=kind, value=value, where=f"the {kind}") for kind, value in numbers.items())
    return e.SettingsGiven(settings=tuple(settings))


def source(**slips):
    """Two modules of the script's own, with slips of these kinds."""
    found = (e.Slip(kind=kind, name=name, file="train.py", line=45) for kind, name in slips.items())
    return e.SourceRead(files=2, slips=tuple(found))


def taken(**changes):
    """A schedule that ends with the training, but for these."""
    return e.ScheduleTaken(**{"made_for": 12, "taken": 12, "optimizer_steps": 12, "warmup": 2, **changes})


def evaluation(**changes):
    """A healthy evaluation, but for these."""
    seen = {
        "steps": 3,
        "split": "eval",
        "reported_loss": 2.0,
        "token_mean_loss": 2.1,
        "batch_mean_loss": 2.0,
        "tokens": 90,
        "training_modules_during": 0,
        "gradients_enabled": False,
        "weights_changed": False,
    }
    return e.EvaluationSeen(**{**seen, **changes})


def inputs(*, steps=4, digests=lambda step: (f"batch {2 * step}", f"batch {2 * step + 1}"), size=1.0):
    """The batches of a healthy training's steps, or these."""
    return [e.StepInputs(step=step, digests=digests(step), written=targets(step), size=size) for step in range(steps)]


def targets(step, *, ended=True, **more):
    """What an encoder-decoder learns to write in this step of a healthy training, or without its ends."""
    return tuple(target(f"{step} {number}", tokens=4 + number, ended=ended, **more) for number in range(4))


def target(digest, *, tokens, ended=False, **more):
    """One target, which has no end."""
    return e.TargetWritten(tokens=tokens, digest=digest, ended=ended, **more)


def writing(written_in):
    """The batches of a healthy training's steps, with these targets."""
    return [e.StepInputs(step=step, digests=(f"batch {step}",), written=written_in(step)) for step in range(4)]


def logged(trace, factor=1.0):
    """What the log says of the trace's steps, times this factor."""
    losses = [step.loss for step in trace.steps]
    return [e.Logged(steps=number, loss=factor * loss) for number, loss in enumerate(losses, start=1)]


def learned(**changes):
    """The targets of a healthy training's vocabulary, with changes."""
    return e.TokensLearned(**{"outputs": 500, "rows": 32, "targets": 400, "most": 30, "unknown": 4, **changes})


def preferring(right, contrary):
    """As many answers of each of two columns that the loss pulls as their names have it, and the other way."""
    pulls = {"chosen_raised": right, "chosen_lowered": contrary, "rejected_raised": contrary, "rejected_lowered": right}
    return e.PreferencesLearned(where="'chosen' and 'rejected'", **pulls)


def watched(*records):
    """A healthy trace with these records in place of the healthy ones."""
    trace = with_run(
        healthy(), features=list(FEATURES), premises=BY_A_SCRIPT, expected=EXPECTED, rows_per_micro_batch=2
    )
    kinds = {type(record) for record in records}
    for number in range(len(trace.all(e.TrainingState))):
        trace = with_record(trace, e.TrainingState, number, random_state=f"state {number}")
    trace = with_record(with_record(trace, e.CallOrder, clip_scale=1e-5), e.CallOrder, 1, clip_scale=0.4)
    usual = [rows(), spans(), positions(), evaluation(), e.Rates(tensors=8, wrong={}), *logged(trace)]
    usual += [written(), e.PairsGiven(step=0, pairs=24, alike=3), preferring(24, 0), loaded(), handed_out()]
    usual += [
        given(lora_scale=2.0, dropout=0.1, adam_rate=1e-3),
        source(),
        taken(),
        *inputs(),
        e.EvaluationRows(rows=50, among=3, trained=400),
    ]
    usual += [e.ScoresGiven(functions=2, probabilities=()), e.LossDivided(micro_batches=2, by="the Trainer")]
    return adding(trace, *(record for record in usual if type(record) not in kinds), *records)


def of_unknown_labels(*records):
    """A trace with these records in place of the healthy ones, of a loss that nobody follows."""
    return with_run(watched(*records), premises=BY_A_SCRIPT | opened({"labels_known": "a loss of its own"}))


def having_problem(trace):
    """The trace with a row whose padding is learned."""
    return with_record(trace, e.Window, 0, problems={"padding is supervised": "'<pad>'"})


def one_row(trace):
    """The trace with the same row in every place."""
    for number in range(len(trace.all(e.Window))):
        trace = with_record(trace, e.Window, number, rows=("a",) * 4)
    return trace


FAULTS = {
    "labels_as_configured": {
        "padding": lambda: having_problem(watched()),
        "ends masked": lambda: watched(rows(end_tokens_supervised=0, end_tokens_masked=24)),
        "nothing supervised": lambda: watched(rows(unsupervised=24)),
        "nothing supervised in half of the rows": lambda: watched(
            spans(lambda number: {"learned": 0, "first": -1, "column": 0, "behind": 30} if number % 2 else {})
        ),
        "ends alone": lambda: watched(spans(lambda number: {"learned": 1, "first": 29 + number})),
        "prompts in place of answers": lambda: watched(rows(first_token_supervised=24, beginnings=24)),
        "an end that is padding": lambda: watched(rows(padding_ends=24)),
        "a start within": lambda: watched(rows(begins_again=24)),
        "a prompt twice": lambda: watched(rows(begins_twice=24)),
        "a user's turns": lambda: watched(rows(users_learned=24)),
        "marks of the model's turns": lambda: watched(rows(headers_learned=24)),
        "answers that begin astray": lambda: watched(rows(begun_astray=24)),
        "prompts that show their answers": lambda: watched(rows(answers_shown=24)),
        "answers without their beginning": lambda: watched(rows(begun_late=2)),
        "prompts like answers": lambda: watched(rows(prompts_share=0.6)),
        "another model's tokenizer": lambda: watched(e.BaseTokens(tokens=60, other=40, example="'a' is 3, and 5")),
        "labels of long rows cut off": lambda: watched(
            spans(lambda number: {"column": 45, "behind": number - 15, "ended": False} if number > 15 else {})
        ),
    },
    "mask_and_positions": {
        "padding that nobody names": lambda: watched(rows(padded_before=18)),
        "positions from 1": lambda: watched(rows(positions_from=1)),
        "a prompt that is hidden": lambda: with_record(watched(), e.Window, 1, inputs={"text is hidden": "'What'"}),
    },
    "batch_as_configured": {
        "a row dropped": lambda: watched(spans(lambda number: {"micro_batch": number})),
    },
    "answers_end": {
        "a turn begun behind each answer": lambda: watched(rows(turns=48, turns_unfilled=24)),
        "no mark of the assistant's turn": lambda: watched(rows(turns_unopened=24)),
        "no ends": lambda: watched(spans(loose)),
        "new lines": lambda: watched(spans(lambda number: {**loose(number), "last": "\n"})),
        "cut off alike": lambda: watched(spans(lambda number: {**loose(number), "learned": 4})),
        "a loss of the script's own": lambda: with_run(
            watched(spans(loose)), premises=BY_A_SCRIPT | opened({"token_mean_loss": "each row has a mean of its own"})
        ),
        "none in every third row": lambda: watched(spans(lambda number: {} if number % 3 else loose(number))),
    },
    "written_answers_end": {
        "no ends": lambda: watched(*writing(lambda step: targets(step, ended=False))),
        "no ends, all of one length": lambda: watched(
            *writing(lambda step: tuple(target(f"{step} {n}", tokens=9) for n in range(4)))
        ),
        "none in half of the steps": lambda: watched(*writing(lambda step: targets(step, ended=step > 1))),
        "ends of a model of the script's own": lambda: watched(used(alike=12, loose=20)),
        "padding is learned": lambda: watched(*writing(lambda step: targets(step, filled=3))),
        "two start tokens": lambda: watched(*writing(lambda step: targets(step, begun=True))),
    },
    "as_expected": {
        "an end that is not learned": lambda: watched(rows(expected={**ALL_MET, "supervised": ("'an answer'",)})),
        "a prompt that is learned": lambda: watched(rows(expected={**ALL_MET, "unsupervised": ("'Question: ?'",)})),
        "a head that is not trained": lambda: with_run(watched(), expected={"trained": "lm_head"}),
        "an adapter that does not move": lambda: with_record(watched(), e.Movement, unmoved=LORA_B[:1]),
        "adapters that were to be frozen": lambda: with_run(watched(), expected={"frozen": "lora_A"}),
        "a base that changes": lambda: with_record(watched(), e.Movement, frozen_changed=("model.embed_tokens",)),
        "another accumulation": lambda: with_run(watched(), expected={"accumulation": 4}),
    },
    "rows_come_once": {
        "a row twice": lambda: watched(rows(repeated=("'a row'",))),
        "one row alone": lambda: one_row(watched()),
        "one row alone, cut off": lambda: one_row(watched(spans(cut))),
    },
    "inputs_scaled": {
        "pixels up to 255": lambda: watched(*inputs(size=85.0)),
    },
    "batches_change": {
        "one batch": lambda: watched(*inputs(digests=lambda step: ("batch", "batch"))),
        "one class": lambda: watched(*of_classes([0] * 40)),
        "one batch in each step": lambda: watched(
            e.LossDivided(micro_batches=2, by="the loop"), *inputs(digests=lambda step: (f"batch {step}",) * 2)
        ),
        "targets of the first batch": lambda: watched(*aiming(lambda step: "same")),
        "a text that no pass reads": lambda: watched(
            *inputs(), e.StepInputs(step=4, digests=("batch 9",), unread=("positive",))
        ),
        "one timestep": lambda: watched(
            *(e.StepInputs(step=step, digests=(f"batch {step}",), constant="timesteps is 0") for step in range(4))
        ),
        "one view twice": lambda: watched(
            *(e.StepInputs(step=step, digests=(f"batch {step}",), twins=True if step else None) for step in range(4))
        ),
        "equal texts with other targets": lambda: watched(
            *(e.StepInputs(step=n, digests=(f"batch {n}",), known=4, contrary=3) for n in range(4))
        ),
        "one rating": lambda: watched(
            *(
                e.StepInputs(step=n, digests=(f"batch {n}",), answers=4, answers_from=10.0, answers_to=10.0)
                for n in range(4)
            )
        ),
        "one text": lambda: watched(
            *(
                e.StepInputs(step=n, digests=(f"batch {n}",), read=(e.RowRead(digest="one", tokens=9, last=0),))
                for n in range(4)
            )
        ),
        "targets in another order": lambda: watched(
            *(e.StepInputs(step=step, digests=(f"batch {step}",), paired=False) for step in range(3))
        ),
    },
    "rows_whole": {
        "beginnings cut off": lambda: watched(spans(lambda number: {"tokens": 64} if number % 3 else {})),
        "most answers cut off": lambda: watched(spans(lambda number: cut(number) if number < 19 else {})),
        "some answers cut off": lambda: watched(
            spans(lambda number: {"tokens": 64, "ended": number > 1} if number < 4 else {})
        ),
        "all of them, by a declared length": lambda: with_run(
            watched(rows(end_tokens_supervised=0), spans(cut)), longest=64
        ),
        "all of them, in a template that is learned": lambda: watched(
            rows(end_tokens_supervised=0, first_token_supervised=24), spans(cut, begin_alike=True)
        ),
        "pairs cut off": lambda: with_run(
            watched(read_rows(24, lambda number: 100 + number, shorter=0)),
            premises=opened({"causal_lm": "DPOTrainer trains another objective"}),
        ),
        "texts that lose most of their tokens": lambda: watched(
            e.TextsCut(max_length=8, texts=64, cut=60, kept_tokens=500, lost_tokens=1500)
        ),
        "targets cut off": lambda: watched(
            *writing(lambda step: [target(f"{step} {at}", tokens=8, ended=True) for at in range(4)])
        ),
    },
    "no_loss_on_padding": {
        "labels of padding": lambda: watched(positions(padding_share=0.3)),
        "not a number": lambda: watched(positions(padding_share=math.nan)),
        "in one step alone": lambda: watched(positions(), positions(step=1, padding_share=0.02)),
        "of what seems to be padding": lambda: watched(positions(padding_share=0.3, padding_guessed=True)),
        "unknown tokens": lambda: watched(learned(unknown=240)),
        "one token": lambda: watched(learned(most=390)),
        "means over all positions": lambda: watched(learned(over_all=6)),
        "one token again and again": lambda: watched(learned(runs=20)),
        "labels of CTC that are filled up": lambda: watched(learned(spelt=24)),
        "a mask without the first label": lambda: watched(positions(answers=12, used_late=12)),
        "a mask that goes on": lambda: watched(positions(answers=12, used_behind=7)),
    },
    "padding_hidden": {
        "a mask of ones": lambda: watched(positions(padding_both_ways=40, padding_shown=40)),
        "a mask of other tokens": lambda: watched(positions(text_both_ways=40, text_hidden=20)),
        "generating behind padding": lambda: watched(
            e.StepInputs(step=0, digests=("batch",), continued=8, behind_padding=6)
        ),
    },
    "rows_reach_loss": {
        "the first position": lambda: watched(positions(unseen=54)),
        "prompts alone": lambda: of_unknown_labels(used(beginnings=24)),
        "passages without gradients": lambda: watched(e.CutOff(tensors=(), one_sided=1)),
        "tags one early": lambda: watched(positions(marked=24, tags_early=24)),
        "tags one late": lambda: watched(positions(marked=24, tags_late=23)),
        "tags counted by words": lambda: watched(positions(marked=24, split=12, tags_counted=12)),
        "answers from their third token on": lambda: of_unknown_labels(used(begun_late=2)),
        "prompts like answers": lambda: of_unknown_labels(used(prompts_share=0.6)),
        "rows that a view mixes": lambda: watched(positions(rows_alone=8, rows_mixed=6)),
    },
    "no_target_leakage": {
        "a mask that is a token": lambda: watched(positions(masked=40, masks_asked=4)),
        "tokens that are not masked": lambda: watched(positions(masked=40, unmasked=60)),
        "targets of the input's column": lambda: watched(*writing(lambda step: targets(step, copied=True))),
        "labels that are the tokens before": lambda: watched(positions(raising_before=40)),
        "labels that are not shifted": lambda: watched(positions(raising_own=40)),
        "a mask that is not causal": lambda: watched(positions(asked_for_next=4, seeing_next=4)),
        "labels that are shifted twice": lambda: watched(positions(raising_own=0, raising_second=38, asked_for_next=0)),
    },
    "randomness_varies": {
        "a seed in every step": lambda: with_record(watched(), e.TrainingState, random_state="seed 0"),
    },
    "clipping_leaves_gradients": {
        "to nearly nothing": lambda: with_record(watched(), e.CallOrder, clip_scale=2e-4),
    },
    "evaluation_rows_unseen": {
        "a part of the training": lambda: watched(e.EvaluationRows(rows=50, among=50, trained=400)),
    },
    "schedule_ends": {
        "made for micro-batches": lambda: watched(taken(made_for=48)),
        "a warm-up as long as the training": lambda: watched(taken(made_for=0, warmup=100)),
        "a warm-up alone": lambda: watched(taken(made_for=4, warmup=4)),
        "never stepped": lambda: watched(taken(made_for=0, taken=0, warmup=0, never=True)),
        "made for one epoch": lambda: watched(taken(made_for=6)),
        "a decay of epochs in each step": lambda: watched(taken(), taken(made_for=0, warmup=0, taken=11, halves=1.9)),
        "a slower one": lambda: watched(taken(), taken(made_for=0, warmup=0, taken=11, halves=13.5)),
    },
    "loss_logged": {
        "twice as large": lambda: watched(*logged(healthy(), 2.0)),
        "not a number": lambda: watched(*logged(healthy(), math.nan)),
    },
    "rates_as_configured": {
        "an embedding": lambda: watched(e.Rates(tensors=8, wrong={"lora_embedding_A": "1e-4, 1e-6 by the argument"}))
    },
    "pairs_differ": {
        "one column for both": lambda: watched(*(e.PairsGiven(step=step, pairs=4, alike=4) for step in range(3))),
        "prompts again": lambda: watched(e.PairsGiven(step=0, pairs=24, alike=0, prompts_again=20)),
        "prompts again, pair by pair": lambda: watched(
            *(e.PairsGiven(step=step, pairs=1, alike=0, prompts_again=min(step, 1)) for step in range(6))
        ),
        "questions again": lambda: watched(e.PairsGiven(step=0, pairs=24, alike=0, questions_again=20)),
        "all rated alike": lambda: watched(e.AnswersRated(rows=400, kinds=("True",))),
        "prompts again, rated": lambda: watched(e.AnswersRated(rows=64, kinds=("False", "True"), looked=64, again=40)),
    },
    "better_answers_raised": {
        "no reference": lambda: watched(dataclasses.replace(preferring(8, 0), unmoved=2)),
        "tokens of other rows": lambda: watched(dataclasses.replace(preferring(8, 0), of_others=8, compared=32)),
        "columns exchanged": lambda: watched(preferring(0, 24)),
        "half of the pairs": lambda: watched(preferring(10, 14)),
        "advantages": lambda: watched(dataclasses.replace(preferring(0, 24), where="")),
        "equal pairs": lambda: watched(dataclasses.replace(preferring(0, 0), cancelled=4)),
    },
    "state_dict_keys_match": {
        "nothing of it": lambda: watched(loaded(taken=0)),
        "itself": lambda: watched(loaded(), loaded(itself=True)),
        "an empty one": lambda: watched(loaded(), loaded(offered=0, taken=0)),
        "other names": lambda: watched(loaded(), loaded(taken=2, misnamed=("module.h.0.w (the model has h.0.w)",))),
    },
    "loss_receives_logits": {
        "probabilities": lambda: watched(e.ScoresGiven(functions=2, probabilities=("LogSoftmax of a Softmax",))),
        "rows against themselves": lambda: watched(e.ScoresGiven(functions=2, probabilities=(), of_itself=1)),
        "two temperatures": lambda: watched(e.ScoresGiven(functions=2, probabilities=(), softened=1)),
        "logits in nll_loss": lambda: watched(e.ScoresGiven(functions=1, probabilities=(), unnormalised=1)),
        "behind a ReLU": lambda: watched(e.ScoresGiven(functions=1, probabilities=(), cut_at_0=1)),
        "ends learn the starts": lambda: watched(e.ScoresGiven(functions=2, probabilities=(), parts_alike=1)),
        "a policy that is its own reference": lambda: watched(
            e.ScoresGiven(functions=2, probabilities=()),
            e.ScoresGiven(functions=1, probabilities=(), without_reference=1),
        ),
        "distance that is rewarded": lambda: watched(e.ScoresGiven(functions=1, probabilities=(), rewarded=1)),
        "the smaller loss": lambda: watched(e.ScoresGiven(functions=1, probabilities=(), unbounded=1)),
        "another policy's rows": lambda: watched(e.ScoresGiven(functions=1, probabilities=(), off_policy=1)),
        "noise drawn anew": lambda: watched(e.ScoresGiven(functions=1, probabilities=(), foreign=1)),
        "targets above 1": lambda: watched(e.ScoresGiven(functions=0, probabilities=(), outside=1)),
        "outputs against all targets": lambda: watched(e.ScoresGiven(functions=0, probabilities=(), crossed=1)),
        "positions that compete": lambda: watched(e.ScoresGiven(functions=1, probabilities=(), over_positions=1)),
        "a temperature for a scale": lambda: watched(e.ScoresGiven(functions=1, probabilities=(), flat=1)),
        "one loss twice": lambda: watched(e.ScoresGiven(functions=2, probabilities=(), again=1)),
        "a target that learns": lambda: watched(e.ScoresGiven(functions=1, probabilities=(), reversed=1)),
        "a part of the output is not read": lambda: watched(e.ScoresGiven(functions=1, probabilities=(), unread=6)),
        "weights of other classes": lambda: watched(e.ScoresGiven(functions=1, probabilities=(), weighed_up=1)),
        "a scale exponentiated twice": lambda: watched(e.ScoresGiven(functions=2, probabilities=(), far_off=2)),
        "positives of other texts": lambda: watched(e.ScoresGiven(functions=1, probabilities=(), mispaired=1)),
        "targets out of reach": lambda: watched(
            e.ScoresGiven(functions=1, probabilities=(), unreached=("MseLoss of outputs that reach -1 to 1",))
        ),
        "a view in place of a transpose": lambda: watched(e.ScoresGiven(functions=2, probabilities=(), exchanged=1)),
    },
    "loss_normalised_over_accumulation": {
        "by nobody": lambda: watched(e.LossDivided(micro_batches=4, by="")),
    },
    "settings_usual": {
        "a share that is kept": lambda: watched(given(dropout=0.95)),
        "norms decay": lambda: watched(given(norm_decay=0.01)),
        "betas exchanged": lambda: watched(given(adam_beta1=0.999, adam_beta2=0.9)),
        "not a number": lambda: watched(given(lora_scale=math.nan)),
    },
    "values_used": {
        "a length that masks nothing": lambda: watched(source(variable="prompt_len")),
        "a result dropped": lambda: watched(source(result="labels.masked_fill(...)")),
    },
    "names_agree": {
        "a mask of the other answer": lambda: watched(source(exchanged="rejected_out from chosen_mask")),
    },
    "lists_stay_paired": {
        "texts shuffled alone": lambda: watched(source(reordered="texts without labels")),
    },
    "best_weights_kept": {
        "the largest loss": lambda: watched(source(best="best_loss keeps the largest val_loss")),
    },
    "loss_terms_whole": {
        "a number in a sum": lambda: watched(source(term="adds reg_loss.item(), which has no gradient")),
    },
    "means_whole": {
        "a sum that goes on": lambda: watched(
            source(mean="total_loss over len(loader): the sum goes on from pass to pass, the count does not")
        ),
    },
    "modes_switched": {
        "no way back": lambda: watched(source(mode="model.eval() stands in the loop, and train() does not")),
    },
    "workers_differ": {
        "all rows from each": lambda: watched(handed_out(rounds=8, distinct=8, alike=8)),
    },
    "saved_as_trained": {
        "an empty adapter": lambda: watched(written(tensors=0, trained=0)),
        "an empty dictionary": lambda: watched(written(own=False, tensors=0, trained=0)),
        "the base within adapters": lambda: watched(written(wrapped=4)),
        "A under the name of B": lambda: watched(written(misnamed=(f"{LORA_B[0]} of {LORA_A[0]}",))),
        "an adapter that was just made": lambda: watched(written(), written(trained=0, other=8, blank=True)),
        "an adapter from before": lambda: watched(written(), written(trained=0, earlier=LORA_B)),
        "a copy from before alone": lambda: watched(written(own=False, trained=0, earlier=LORA_B)),
        "the base over the trained model": lambda: watched(
            written(), written(own=False, trained=0, earlier=LORA_B, overwrites=True)
        ),
        "a model that is loaded again": lambda: watched(written(own=False, trained=0, earlier=LORA_B, other=2)),
        "an average that is never updated": lambda: watched(written(start=True)),
        "the base behind the trained model": lambda: watched(
            written(), written(own=False, trained=0, earlier=LORA_B, start=True)
        ),
        "an average of the start alone": lambda: watched(written(trained=0, earlier=LORA_B, returned=True)),
        "the base alone": lambda: watched(written(own=False, trained=0, without_adapters=4)),
        "the start alone": lambda: watched(written(own=False, trained=0, earlier=LORA_B, first=True)),
        "a head alone": lambda: watched(written(own=False), written(own=False, trained=2, lost=LORA_B, leading=True)),
        "all but a head": lambda: watched(written(), written(own=False, trained=7, lost=LORA_B[:1], scoring=True)),
        "the highest perplexity": lambda: watched(e.BestChosen(metric="eval_perplexity", greater=True)),
        "the lowest F1": lambda: watched(e.BestChosen(metric="eval_f1_macro", greater=False)),
        "a teacher": lambda: watched(written(own=False, trained=0, other=9, lost=LORA_B, leading=True)),
        "an adapter that rested": lambda: watched(written(trained=0, other=4, resting=4)),
    },
    "evaluation_reported": {
        "another loss": lambda: watched(evaluation(reported_loss=4.0)),
        "not a number": lambda: watched(evaluation(reported_loss=math.nan)),
        "train mode": lambda: watched(evaluation(training_modules_during=3)),
        "gradients": lambda: watched(evaluation(gradients_enabled=True)),
        "weights": lambda: watched(evaluation(weights_changed=True)),
        "some rows": lambda: watched(evaluation(rows=2, dataset_rows=7)),
    },
}


APART = {
    *("export_reads_back", "resumed_as_configured", "loss_moves", "usual_tensors_learn", "fp16_gradients_scaled"),
}
"""Checks whose evidence is there in every training, or in none of the healthy one's."""


def test_every_check_of_a_watched_training_is_here():
    """Those of an attempt or of the declarations alone have tests of their own below."""
    assert {*FAULTS, *APART} == WATCHED


@pytest.mark.parametrize("name", FAULTS)
def test_a_healthy_training_passes(name):
    """With the evidence, and it is unjudged, never passed, where there was none."""
    assert CHECKS[name]()(watched()).status is Status.PASSED
    without_rows = with_run(healthy(), features=list(FEATURES), expected=EXPECTED)
    assert CHECKS[name]()(without_rows).status is Status.UNJUDGED


@pytest.mark.parametrize(("name", "fault"), [(name, fault) for name, faults in FAULTS.items() for fault in faults])
def test_a_fault_fails(name, fault):
    """Each by the check that is about it; what some do on purpose is a suspicion, and says who."""
    finding = CHECKS[name]()(FAULTS[name][fault]())
    assert finding.status is (Status.SUSPECTED if (name, fault) in MEANT else Status.FAILED)
    assert bool(finding.meant) is ((name, fault) in MEANT)
    assert all(cause in CHECKS[name].meaning for cause in finding.meaning.split(". "))


@pytest.mark.parametrize(
    ("problems", "cause"),
    [
        ({"labels are the next tokens": "'a'"}, "The collator shifts labels, and the loss shifts them again."),
        ({"labels are the next tokens": "'a'", "padding is supervised": "'b'"}, "The collator shifts labels"),
        ({"labels are the next tokens": "'a'", "the start token is doubled": "'b'"}, ""),
    ],
    ids=["one", "two", "one of two"],
)
def test_a_finding_brings_the_causes_that_it_proves(problems, cause):
    """In place of all that the check knows, where each thing that is wrong has one."""
    check = CHECKS["labels_as_configured"]
    found = check()(with_record(watched(), e.Window, problems=problems)).meaning

    assert found.startswith(cause)
    assert found.count(". ") < len(problems) if cause else found == check.meaning


def test_every_suspicion_is_listed():
    """So that none is spelled wrongly."""
    assert {(name, fault) for name, faults in FAULTS.items() for fault in faults} >= MEANT


@pytest.mark.parametrize(
    ("changes", "told"),
    [({"dataset_rows": 0, "uncertain": 8}, "all .* micro-batches are equal"), ({"repeated": ("'a row'",)}, "a row")],
    ids=["the same batch", "a row twice"],
)
def test_the_suites_own_runs_know_no_suspicion(changes, told):
    """Their files say what they mean: the same trace fails there."""
    trace = watched(rows(**changes))
    if "uncertain" in changes:
        trace = with_record(trace, e.Window, digests=("one", "one"))
    settings = {key: value for key, value in trace.settings.items() if key != "premises"}
    own = dataclasses.replace(trace, header=dataclasses.replace(trace.header, run=settings))
    check = CHECKS["rows_come_once"]()
    assert re.search(told, check(trace).detail)
    assert (check(trace).status, check(own).status) == (Status.SUSPECTED, Status.FAILED)


def test_rows_cut_off_where_they_are_the_same_are_told_as_cut_off():
    """A template's first words are in all of them; one that is whole is not explained by that."""
    check = CHECKS["rows_come_once"]()
    truncated, whole = (one_row(watched(spans(change))) for change in (cut, lambda number: {"tokens": 64}))

    assert (check(truncated).status, check(whole).status) == (Status.SUSPECTED, Status.FAILED)
    assert "every row is truncated" in check(truncated).meant


@pytest.mark.parametrize(("error", "status"), [(math.inf, Status.SUSPECTED), (math.nan, Status.SUSPECTED), (0, None)])
def test_an_attention_kernel_that_is_wrong_for_rows_that_were_not_seen_is_a_question(error, status):
    """cuDNN's on an H100: the training's own rows came out right. Rows of its own that are wrong fail."""
    check = CHECKS["forward_matches_architecture"]()
    trace = with_record(watched(), e.ForwardReference, extreme_error=error, extreme_error_at="its gradient by q")

    assert check(trace).status is (status or Status.PASSED)
    assert ("enable_cudnn_sdp(False)" in check(trace).meaning) is bool(status)
    assert "enable_cudnn_sdp" not in check(with_record(trace, e.ForwardReference, error=0.3)).meaning


def test_what_rests_on_a_presumed_premise_is_suspected_at_most():
    """Whoever presumes it says why; what could not be read for it is no lost evidence."""
    why = "the model contains the script's own Beside"
    check, trace = CHECKS["forward_matches_architecture"](), with_record(watched(), e.ForwardReference, error=0.3)
    presumed = with_run(trace, premises={"architecture_known": {"source": "presumed", "where": why}})
    assert (check(trace).meant, check(presumed).meant) == (check.convention, why)

    unread = without(presumed, e.ForwardReference)
    assert (check(unread).status, check(unread).detail, check(unread).expected) == (Status.UNJUDGED, why, True)
    assert not check(without(trace, e.ForwardReference)).expected


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda number: {"first": 0}, "every row is supervised in full"),
        (
            lambda number: {"ended": False, "last": "###"},
            "all answers end with '###', which may be",
        ),
        (lambda number: {**loose(number), "learned": 1}, "all answers have one token"),
        (lambda number: {**loose(number), "answer": str(number % 3)}, "a few answers recur"),
        (lambda number: {**loose(number), "tokens": 64}, "0 untruncated answers, 8 are needed"),
        (lambda number: {"row": "one", "answer": "one"}, "1 untruncated answers, 8 are needed"),
    ],
    ids=["running text", "a mark", "one token", "classes", "cut off", "one row"],
)
def test_answers_that_need_no_end_are_not_held_to_one(change, why):
    """Nobody can say then that the model is to stop."""
    finding = CHECKS["answers_end"]()(watched(spans(change)))
    assert (finding.status, finding.expected) == (Status.UNJUDGED, True)
    assert finding.detail.startswith(why)


@pytest.mark.parametrize("last", [" ", ". "], ids=["a space", "a sentence and a space"])
def test_a_space_is_no_end_mark(last):
    """A template may leave one behind each answer."""
    finding = CHECKS["answers_end"]()(watched(spans(lambda number: {"ended": False, "last": last})))
    assert finding.status is (Status.FAILED if last.strip() else Status.SUSPECTED)


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("labels_as_configured", e.BaseTokens(tokens=60, other=20)),
        ("labels_as_configured", e.BaseTokens(tokens=4, other=4)),
        ("labels_as_configured", e.BaseTokens(tokens=0, other=0)),
        (
            "labels_as_configured",
            rows(begins_again=6, begins_twice=9, users_learned=12, headers_learned=9, padding_ends=18),
        ),
        ("pairs_differ", e.PairsGiven(step=0, pairs=24, alike=0, prompts_again=3)),
        ("pairs_differ", e.AnswersRated(rows=400, kinds=("False", "True"), looked=64, again=9)),
    ],
    ids=["some tokens added", "few tokens", "none known", "some marks", "some answers that quote", "rated both ways"],
)
def test_what_some_rows_hold_is_no_fault(name, record):
    """Of most of them it is asked."""
    assert CHECKS[name]()(watched(record)).passed


@pytest.mark.parametrize(
    ("premises", "status"), [({}, Status.FAILED), (opened({"labels_known": "a loss of its own"}), Status.PASSED)]
)
def test_a_step_whose_samples_are_worth_the_same_is_none_of_the_adapters(premises, status):
    """As in GRPO, whose first steps may have no gradient at all."""
    trace = with_run(watched(), premises=BY_A_SCRIPT | premises)
    none, first = ("q.lora_A.w", "q.lora_B.w"), ("q.lora_A.w",)
    trace = with_record(trace, e.Gradients, 0, norms={"lora_A": 0.0, "lora_B": 0.0}, zero=none)
    trace = with_record(trace, e.Gradients, 1, norms={"lora_A": 0.0, "lora_B": 1.0}, zero=first)
    finding = CHECKS["lora_gradient_schedule"]()(trace)
    assert finding.status is status, finding.detail


def test_a_supervised_loss_may_raise_answers_of_both_names():
    """A language model may go on learning with all texts that there are."""
    both = e.PreferencesLearned(
        where="'chosen' and 'rejected'", chosen_raised=9, chosen_lowered=0, rejected_raised=12, rejected_lowered=0
    )
    assert CHECKS["better_answers_raised"]()(watched(both)).status is Status.UNJUDGED


@pytest.mark.parametrize(("raised", "status"), [(7, Status.UNJUDGED), (12, Status.SUSPECTED), (0, Status.PASSED)])
def test_answers_of_one_name_go_one_way(raised, status):
    """Else the texts that tell them are in other answers, too."""
    pulls = {"chosen_raised": 0, "chosen_lowered": 0, "rejected_raised": raised, "rejected_lowered": 12 - raised}
    seen = e.PreferencesLearned(where="'chosen' and 'rejected'", **pulls)
    finding = CHECKS["better_answers_raised"]()(watched(seen))
    assert finding.status is status, finding.detail


@pytest.mark.parametrize(("used", "status"), [(0, Status.PASSED), (2, Status.PASSED), (8, Status.SUSPECTED)])
def test_the_padding_of_answers_is_not_learned(used, status):
    """Nor does a few rows' one tell anything."""
    finding = CHECKS["better_answers_raised"]()(
        watched(dataclasses.replace(preferring(24, 0), padded=8, padding_used=used))
    )
    assert finding.status is status, finding.detail


@pytest.mark.parametrize(("alike", "status"), [(0, Status.UNJUDGED), (6, Status.UNJUDGED), (8, Status.SUSPECTED)])
def test_answers_of_one_prompt_go_opposite_ways(alike, status):
    """Where nothing names the better one. Rated one by one, a half goes the same way."""
    seen = e.PreferencesLearned(
        **dict.fromkeys(("chosen_raised", "chosen_lowered", "rejected_raised", "rejected_lowered"), 0),
        **{"where": "", "prompts": 8, "pulled_alike": alike},
    )
    finding = CHECKS["better_answers_raised"]()(watched(seen))
    assert finding.status is status, finding.detail


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(
            lambda step: tuple(target(f"{step} {n}", tokens=9, ended=not step) for n in range(2 + 2 * bool(step))),
            id="the others cut off",
        ),
        pytest.param(lambda step: tuple(target(f"{n}", tokens=n) for n in range(4)), id="few classes"),
        pytest.param(lambda step: (), id="nothing written"),
    ],
)
def test_targets_of_which_nobody_can_tell_whether_they_end_are_unjudged(seen):
    """The longest may be truncated, and a few that recur may be classes."""
    finding = CHECKS["written_answers_end"]()(watched(*writing(seen)))
    assert (finding.status, finding.expected) == (Status.UNJUDGED, True)


@pytest.mark.parametrize(("held", "passed"), [(LORA, True), (LORA[1:], False)], ids=["beside all", "in place of one"])
def test_an_optimizer_may_hold_what_a_loss_keeps_frozen(held, passed):
    """A guide's or a teacher's tensors get no gradient. In place of the model's own they are older ones."""
    seen = watched()
    for number in range(len(seen.all(e.Census))):
        seen = with_record(seen, e.Census, number, optimized=(*held, *"????"))
    finding = CHECKS["optimizer_coverage"]()(seen)

    assert finding.passed is passed
    assert passed or "do not belong to the model" in finding.detail


def test_two_steps_with_one_batch_are_unjudged():
    """As expected: nothing is lost."""
    finding = CHECKS["batches_change"]()(watched(*inputs(steps=2, digests=lambda step: ("batch",))))
    assert (finding.status, finding.expected) == (Status.UNJUDGED, True)


@pytest.mark.parametrize(
    ("targets", "asked"),
    [
        ([0] * 40, True),
        ([0] * 24, False),
        ([0] * 20 + [1] * 20, True),
        ([0] * 20 + [1] * 19 + [0], False),
        ([number // 4 for number in range(40)], False),
    ],
    ids=["one class", "few rows", "two blocks", "none of its own", "small blocks"],
)
def test_rows_in_blocks_of_a_class_are_asked_about(targets, asked):
    """Of few rows it may be chance."""
    finding = CHECKS["batches_change"]()(watched(*of_classes(targets)))
    assert finding.status is (Status.SUSPECTED if asked else Status.PASSED)


def test_batches_with_an_object_that_nobody_can_read_are_told_apart_by_their_tensors():
    """Equal tensors then prove nothing."""
    for digests, status in ((("batch",), Status.UNJUDGED), (("batch", "other"), Status.PASSED)):
        seen = [e.StepInputs(step=step, digests=(digests[step % len(digests)],), opaque=True) for step in range(4)]
        finding = CHECKS["batches_change"]()(watched(*seen))
        assert (finding.status, "cannot look into" in finding.detail) == (status, status is Status.UNJUDGED)


@pytest.mark.parametrize(
    "seen",
    [
        aiming(lambda step: f"{step}"),
        aiming(lambda step: "same", lambda step: (f"batch {step % 2}",)),
        aiming(lambda step: "same", steps=3),
    ],
    ids=["others", "of equal inputs", "three steps"],
)
def test_targets_may_be_the_same_where_inputs_are(seen):
    """Two of four batches, or a few steps alone, may have them by chance."""
    assert CHECKS["batches_change"]()(watched(*seen)).status is Status.PASSED


def test_micro_batches_that_nobody_knows_are_not_told_to_be_alike():
    """As where parts of a model are called one after the other."""
    seen = watched(*(e.StepInputs(step=step, digests=()) for step in range(4)))
    assert CHECKS["batches_change"]()(seen).status is Status.UNJUDGED


def test_passes_over_the_same_rows_are_no_accumulation():
    """As those with perturbed embeddings, in adversarial training."""
    for digests, status in ((("a", "a"), Status.UNJUDGED), (("a", "b"), Status.FAILED)):
        seen = watched(e.LossDivided(micro_batches=2, by=""), *inputs(digests=lambda step, all_of=digests: all_of))
        assert CHECKS["loss_normalised_over_accumulation"]()(seen).status is status
    summed = watched(e.LossDivided(micro_batches=2, by=""), *inputs(digests=lambda step: (f"batch {step}",) * 2))
    assert CHECKS["batches_change"]()(summed).status is Status.PASSED


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, Status.PASSED),
        ({"drawn": ("head.weight",)}, Status.SUSPECTED),
        ({"at_0": ("positions",)}, Status.SUSPECTED),
        ({"layers_rest": True}, Status.SUSPECTED),
        ({"upper_rest": "3 of 4 layers of h"}, Status.SUSPECTED),
        ({"frozen_tensors": 0, "rates_fall": "the rates of 4 layers of h fall from 1 to 0.5"}, Status.SUSPECTED),
        ({"frozen_tensors": 0}, Status.UNJUDGED),
        ({"frozen_tensors": 0, "misfrozen": ("body",)}, Status.SUSPECTED),
        ({"added": (512,)}, Status.SUSPECTED),
        ({"frozen_tensors": 0, "adapted": ("layer.weight",)}, Status.SUSPECTED),
    ],
    ids=[
        "healthy",
        "a head",
        "a table of zeros",
        "no layer",
        "the last layers",
        "the first layers most",
        "nothing is frozen",
        "an attribute in vain",
        "a new token",
        "what is adapted",
    ],
)
def test_what_nearly_every_training_has_learn_learns(changes, status):
    """Random features, or norms alone, may be meant."""
    assert CHECKS["usual_tensors_learn"]()(with_record(watched(), e.Movement, **changes)).status is status


@pytest.mark.parametrize(
    ("share", "calls", "status"),
    [
        (0.2, ("forward", "backward", "step", "clear"), Status.SUSPECTED),
        (0.01, ("forward", "backward", "step", "clear"), Status.PASSED),
        (0.2, ("forward", "scale", "backward", "unscale", "step", "clear"), Status.UNJUDGED),
        (None, ("forward", "backward", "step", "clear"), Status.UNJUDGED),
        (math.nan, ("forward", "backward", "step", "clear"), Status.SUSPECTED),
    ],
    ids=["small", "large", "scaled", "another precision", "no number"],
)
def test_fp16_loses_small_gradients_that_nobody_scales(share, calls, status):
    """A training may do without them."""
    trace = watched()
    for number in range(len(trace.all(e.Gradients))):
        trace = with_record(with_record(trace, e.Gradients, number, subnormal=share), e.CallOrder, number, calls=calls)
    assert CHECKS["fp16_gradients_scaled"]()(trace).status is status


@pytest.mark.parametrize(("passes", "dropping", "meant"), [(8, 8, True), (8, 7, False), (0, 0, False)])
def test_a_loop_evaluates_in_eval_mode(passes, dropping, meant):
    """Noise may be meant."""
    finding = CHECKS["state_in_training"]()(watched(e.LoopEvaluations(passes=passes, dropping=dropping)))

    assert finding.status is (Status.SUSPECTED if meant else Status.PASSED)
    assert ("all 8 passes without gradients are in train mode" in finding.detail) is meant


@pytest.mark.parametrize(
    ("learnt", "quiet", "asked"), [(40, 30, True), (40, 7, False), (40, 40, False), (40, 0, False)]
)
def test_a_loop_returns_to_train_mode(learnt, quiet, asked):
    """A script may switch dropout off for its last phase."""
    seen = e.LoopEvaluations(passes=8, dropping=0, learnt=learnt, quiet_at_the_end=quiet)
    finding = CHECKS["state_in_training"]()(watched(seen))

    assert finding.status is (Status.SUSPECTED if asked else Status.PASSED)
    assert ("the last 30 of 40 batches" in finding.detail) is asked


def test_layers_in_a_plain_list_are_a_question():
    """They get gradients, and nobody has them learn."""
    assert CHECKS["trainable_moved"]()(watched(e.CutOff(tensors=(), hidden=("layers[0]",)))).status is Status.SUSPECTED


@pytest.mark.parametrize("restored", [True, False])
def test_weights_that_are_moved_for_a_gradient_are_moved_back(restored):
    """As a sharpness-aware step does."""
    calls = ("forward", "backward", "move", "clear", "forward", "backward", *["unrestored move"] * (not restored))
    trace = watched()
    for number in range(len(trace.all(e.CallOrder))):
        trace = with_record(trace, e.CallOrder, number, calls=(*calls, "step", "clear"))
    finding = CHECKS["calls_in_order"]()(trace)

    assert finding.status is (Status.PASSED if restored else Status.SUSPECTED), finding.detail


def test_an_end_that_nobody_knows_is_said_to_be_unasked():
    """A Trainer without a processing_class, of a model whose configuration names none."""
    finding = CHECKS["answers_end"]()(watched(spans(end_tokens=())))
    assert (finding.status, finding.expected) == (Status.UNJUDGED, True)
    assert "the end token is unknown: set the Trainer's processing_class" in finding.detail


@pytest.mark.parametrize(
    "change",
    [
        lambda number: {"micro_batch": number // (1 + number % 2)},
        lambda number: {"micro_batch": number, "stretches": 3},
        lambda number: {"micro_batch": number, "documents": 2},
    ],
    ids=["filled by tokens", "packed", "joined"],
)
def test_other_numbers_of_rows_may_be_meant(change):
    """A loader that fills its batches by tokens, a collator that packs."""
    assert CHECKS["batch_as_configured"]()(watched(spans(change))).status is not Status.FAILED


def test_what_follows_an_answer_rightly_is_no_label_that_was_lost():
    """A user's turn begins at another place in each row."""
    assert CHECKS["labels_as_configured"]()(watched(spans(lambda number: {"behind": number % 5}))).passed


def test_a_declared_smoothing_that_is_left_out_is_named():
    """The loss is that of the plain likelihoods; one that is another is not judged further."""
    plain = with_run(watched(), smoothing=0.2)
    smoothed = with_record(plain, e.OwnLoss, loss=lambda loss: 0.9 * loss)

    assert "the loss is not smoothed" in CHECKS["loss_oracle"]()(plain).detail
    assert CHECKS["loss_oracle"]()(plain).status is Status.FAILED
    assert CHECKS["loss_oracle"]()(smoothed).expected


def test_an_evaluation_may_be_smoothed_as_the_training_is():
    """As transformers' Trainer does; not where nothing declares it."""
    trace = watched(evaluation(reported_loss=2.8, token_mean_uniform=6.0, batch_mean_uniform=6.0))

    assert CHECKS["evaluation_reported"]()(with_run(trace, smoothing=0.2)).passed
    assert CHECKS["evaluation_reported"]()(trace).status is Status.SUSPECTED


@pytest.mark.parametrize("name", ["loss_oracle", "accumulation_oracle"])
def test_the_mean_of_no_tokens_is_not_judged(name):
    """With the reason; `finite` names what comes of it."""
    trace = without(watched(), e.Oracle)
    for step in range(len(trace.all(e.Window))):
        trace = with_record(trace, e.Window, step, supervised_tokens=0)
    finding = CHECKS[name]()(trace)

    assert finding.expected
    assert finding.detail.startswith("6 of 6 steps supervise no token")


def test_weights_trained_in_16_bit_are_held_to_what_16_bit_can_do():
    """Their gradients have 8 bits, and smaller updates are lost: a tensor that stands still is told."""
    seen = with_record(watched(), e.Step, 3, gradient_norm=lambda norm: 1.001 * norm)
    seen = with_record(seen, e.Movement, unmoved=LORA_B[:1], smallest_moved_share=0.0)
    halves = with_record(seen, e.Census, trainable_dtypes={"bfloat16": 8})

    assert CHECKS["gradient_norm_reported"]()(halves).passed
    assert CHECKS["gradient_norm_reported"]()(seen).status is Status.FAILED
    assert CHECKS["trainable_moved"]()(halves).status is Status.SUSPECTED
    moving = with_record(halves, e.Movement, unmoved=())
    assert CHECKS["trainable_moved"]()(moving).expected
    for trace in (halves, moving):
        assert "round small updates away" in CHECKS["trainable_moved"]()(trace).detail
    assert CHECKS["trainable_moved"]()(seen).status is Status.FAILED


@pytest.mark.parametrize("known", [True, False])
def test_a_part_that_gets_no_gradient_in_a_model_of_unknown_formulas(known):
    """Its class may compute what a language model's loss does not need, as a pooler."""
    trace = watched()
    for number in range(len(trace.all(e.Gradients))):
        trace = with_record(trace, e.Gradients, number, zero=LORA_B[:1])
    trace = with_record(trace, e.Movement, unmoved=LORA_B[:1])
    trace = with_record(trace, e.ForwardReference, has_formulas=known)
    findings = {name: CHECKS[name]()(trace) for name in ("trainable_moved", "lora_gradient_schedule")}

    asked = {name: finding.status for name, finding in findings.items()}
    told = (Status.FAILED, Status.FAILED) if known else (Status.SUSPECTED, Status.PASSED)
    assert asked == dict(zip(findings, told, strict=True))
    assert known or f"no loss uses {LORA_B[0]}" in findings["trainable_moved"].detail


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("no_loss_on_padding", {"padded": 0}),
        ("padding_hidden", {"padding_both_ways": 0}),
        ("rows_reach_loss", {"tokens": 8, "unseen": 8}),
        ("no_target_leakage", {"raising": 8, "raising_own": 8}),
    ],
)
def test_positions_that_say_nothing_are_unjudged(name, changes):
    """No row was padded, or too few positions were seen with logits of a vocabulary."""
    finding = CHECKS[name]()(watched(positions(**changes)))
    assert (finding.status, finding.expected) == (Status.UNJUDGED, True)


@pytest.mark.parametrize(
    ("name", "kind", "wrong", "excused_by"),
    [
        ("accumulation_oracle", e.Oracle, {"gradient_error": 0.3}, {"edit", "move"}),
        ("weight_gradients", e.WeightGradient, {"error": 0.3}, {"edit", "move"}),
        ("loss_oracle", e.Oracle, {"loss": 9.0}, {"move"}),
    ],
)
@pytest.mark.parametrize("done", ["edit", "move"])
def test_what_a_loop_does_by_hand_is_no_mistake(name, kind, wrong, excused_by, done):
    """Noise is written to gradients, SAM takes them elsewhere: in a Trainer nobody does that on purpose."""
    trace = with_record(healthy(), kind, **wrong)
    by_hand = with_record(trace, e.CallOrder, calls=("forward", "backward", done, "clear", "backward", done, "step"))
    finding = CHECKS[name]()(with_run(by_hand, premises=opened(OF_A_LOOP)))

    assert finding.status is (Status.UNJUDGED if done in excused_by else Status.FAILED)
    assert finding.expected == (done in excused_by)
    assert CHECKS[name]()(by_hand).status is Status.FAILED
    assert CHECKS[name]()(with_run(trace, premises=opened(OF_A_LOOP))).status is Status.FAILED


def exported(difference):
    """A healthy training whose exported model, read back, has logits that differ by this much."""
    trace = with_run(healthy(), features=list(FEATURES))
    read_back = e.ReadBack(files=("model.safetensors",), logit_difference=difference, adapter_effect=None)
    return Trace(trace.header, (trace.main, attempt("read back", read_back)))


def test_an_export_that_is_another_function_fails():
    """Within the limit it passes; without an export it is unjudged."""
    check = CHECKS["export_reads_back"]()

    assert check(exported(1e-7)).status is Status.PASSED
    assert check(exported(7.5)).status is Status.FAILED
    assert check(exported(math.nan)).status is Status.FAILED
    assert check(Trace(exported(0.0).header, (exported(0.0).main,))).status is Status.UNJUDGED


@pytest.mark.parametrize(
    ("first_step", "status"),
    [(0, Status.FAILED), (6, Status.PASSED), (4, Status.PASSED)],
    ids=["anew", "on", "earlier"],
)
def test_a_declared_checkpoint_is_resumed_from(first_step, status):
    """Another checkpoint may be handed to train() on purpose."""
    trace = with_run(watched(), training={"first_step": first_step, "resume_steps": 6})
    finding = CHECKS["resumed_as_configured"]()(trace)

    assert finding.status is status
    assert finding.detail == f"the training starts after step {first_step}, the declared checkpoint is of step 6"


@pytest.mark.parametrize(
    ("at", "status"), [(0, Status.PASSED), (1, Status.FAILED)], ids=["the first step", "a later step"]
)
def test_a_resumed_optimizer_has_its_checkpoints_rate_for_one_step(at, status):
    """With more steps than the resumed training was to have, the schedule is another one from the second step on."""
    rate = 1.5e-4
    trace = with_run(with_record(healthy(), e.Step, at, learning_rate=rate), training={"resumed_rate": rate})

    assert CHECKS["learning_rate_trace"]()(trace).status is status


def test_what_the_training_did_can_leave_a_check_unjudged():
    """With the reason, and nothing else of it."""
    reason = "the loop computes its loss from the logits"
    trace = watched(e.PremisesOpen(reasons={"labels_known": reason}))
    finding = CHECKS["labels_as_configured"]()(trace)

    assert (finding.status, finding.detail, finding.expected) == (Status.UNJUDGED, reason, True)
    assert CHECKS["loss_logged"]()(trace).status == Status.PASSED


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ((rows(first_token_supervised=24), spans(cut)), "every row is supervised in full"),
        (
            (rows(end_tokens_supervised=0), spans(lambda number: {"ended": False})),
            "no row is supervised up to the tokenizer's end token",
        ),
        ((rows(end_tokens_supervised=0), spans(cut)), "no row is supervised up to"),
        ((spans(count=7),), "7 rows, 8 are needed"),
    ],
    ids=["running text", "an end of its own", "rows of one length", "few rows"],
)
def test_rows_that_end_otherwise_are_not_held_to_an_end(records, why):
    """Nobody can say then where a row would have ended."""
    finding = CHECKS["rows_whole"]()(watched(*records))
    assert (finding.status, finding.expected) == (Status.UNJUDGED, True)
    assert finding.detail.startswith(why)


@pytest.mark.parametrize(
    ("followed", "asked", "status"),
    [(8, 8, Status.SUSPECTED), (8, 0, Status.PASSED), (8, 3, Status.PASSED), (0, 0, Status.PASSED)],
    ids=["all", "none", "some", "no padding, or an end token"],
)
def test_last_tokens_that_are_asked_for_padding(followed, asked, status):
    """As by a mask of answers that is one position off from the scores."""
    trace = with_record(watched(), e.PositionGradients, followed=followed, asked_behind=asked)
    finding = CHECKS["no_loss_on_padding"]()(trace)

    assert finding.status is status
    assert ("rows have to predict the padding after them" in finding.detail) is (status is Status.SUSPECTED)


@pytest.mark.parametrize(("steps", "status"), [(4, Status.SUSPECTED), (2, Status.PASSED)])
def test_passes_that_get_no_gradient(steps, status):
    """In a few steps it may be a look at what the model says, and what a critic learns from is detached."""
    trace = watched(e.CutOff(tensors=(), passes=1, in_steps=steps))
    in_turns = with_record(trace, e.CallOrder, calls=lambda calls: (*calls, "step of another optimizer"))
    assert CHECKS["rows_reach_loss"]()(trace).status is status
    assert CHECKS["rows_reach_loss"]()(in_turns).status is Status.PASSED
    assert CHECKS["trainable_moved"]()(trace).status is Status.PASSED


@pytest.mark.parametrize(("equal_in", "status"), [(4, Status.SUSPECTED), (3, Status.PASSED)])
def test_two_inputs_that_are_one(equal_in, status):
    """Both texts of a pair are made of one column; a pair of a data set may have two equal texts."""
    names = "input_ids_j", "input_ids_k"
    steps = [e.StepInputs(step=n, digests=(f"batch {n}",), equal=names if n < equal_in else ()) for n in range(4)]
    finding = CHECKS["batches_change"]()(watched(*steps))
    assert finding.status is status
    assert ("input_ids_j and input_ids_k are equal" in finding.detail) is (status is Status.SUSPECTED)


def read_rows(full, last, shorter=6, others=7):
    """The rows of an objective of its own: six are shorter and end with 7, these are of the longest length."""
    lasts = [7] * shorter + [others] * (6 - shorter)
    short = [e.RowRead(digest=f"short {n}", tokens=10 + n, last=end) for n, end in enumerate(lasts)]
    whole = [e.RowRead(digest=f"full {n}", tokens=32, last=last(n)) for n in range(full)]
    return e.StepInputs(step=0, digests=("batch",), read=(*short, *whole))


@pytest.mark.parametrize(
    ("step", "status"),
    [
        (read_rows(5, lambda number: 100 + number), Status.SUSPECTED),
        (read_rows(5, lambda number: 7), Status.PASSED),
        (read_rows(5, lambda number: 7 if number else 100), Status.PASSED),
        (read_rows(7, lambda number: 7), Status.SUSPECTED),
        (read_rows(1, lambda number: 100), Status.UNJUDGED),
        (read_rows(5, lambda number: 100 + number, shorter=3, others=8), Status.UNJUDGED),
        (e.StepInputs(step=0, digests=("batch",)), Status.UNJUDGED),
    ],
    ids=[
        "cut off",
        "whole",
        "one by chance",
        "cut off before an end mark",
        "all but one shorter",
        "no end in common",
        "none was read",
    ],
)
def test_rows_of_another_objective_are_cut_off(step, status):
    """As many as long as the longest end otherwise than the shorter ones, which end alike."""
    trace = with_run(watched(step), premises=opened({"causal_lm": "only its own code knows the rows"}))
    finding = CHECKS["rows_whole"]()(trace)
    assert finding.status is status, finding.detail
    assert status is not Status.SUSPECTED or re.search("5 of 11|7 of 13 rows have 32 tokens", finding.detail)


@pytest.mark.parametrize(
    ("seen", "ahead"),
    [
        ({"made_for": 12, "taken": 24, "optimizer_steps": 12}, True),
        ({"made_for": 12, "taken": 25, "optimizer_steps": 13}, True),
        ({"made_for": 12, "taken": 12, "optimizer_steps": 12}, False),
        ({"made_for": 24, "taken": 24, "optimizer_steps": 12}, False),  # it counts micro-batches
        ({"made_for": 12, "taken": 24, "optimizer_steps": 24}, False),  # the rate stays at its end
        ({"made_for": 1000, "taken": 24, "optimizer_steps": 12}, False),  # cut short
        ({"made_for": 2, "taken": 4, "optimizer_steps": 2}, False),
    ],
)
def test_a_schedule_made_for_the_optimizers_steps_is_not_stepped_more_often(seen, ahead):
    """Known when the loop has ended; a schedule may as well count micro-batches, or end before the training does."""
    found = CHECKS["calls_in_order"]()(adding(healthy(), e.ScheduleTaken(**seen)))

    assert found.passed is not ahead
    assert ("is stepped more often" in found.detail) is ahead


@pytest.mark.parametrize(
    ("calls", "status"),
    [
        (("backward", "schedule", "backward", "schedule", "step", "clear"), Status.UNJUDGED),
        (("backward", "backward", "step", "schedule", "clear"), Status.PASSED),
    ],
    ids=["each micro-batch", "each step"],
)
def test_a_schedule_of_micro_batches_has_not_passed_before_its_end_is_known(calls, status):
    """It may be made for them; the end of the training tells."""
    trace = healthy()
    for number in range(len(trace.all(e.CallOrder))):
        trace = with_record(trace, e.CallOrder, number, calls=calls)
    assert CHECKS["calls_in_order"]()(trace).status is status
    told = adding(trace, e.ScheduleTaken(made_for=24, taken=24, optimizer_steps=12))
    assert CHECKS["calls_in_order"]()(told).status is Status.PASSED


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, Status.PASSED),
        ({"steps": 0}, Status.SUSPECTED),
        ({"steps": 0, "waiting": 5}, Status.SUSPECTED),
        ({"steps": 0, "waiting": 3}, Status.PASSED),
        ({"steps": 0, "waiting": 3, "model_steps": 3}, Status.PASSED),
        ({"without_gradient": 6}, Status.SUSPECTED),
        ({"without_gradient": 5}, Status.PASSED),
    ],
)
def test_an_optimizer_of_other_tensors(changes, status):
    """It may be made for later; few steps say nothing."""
    seen = {"name": "Adam", "tensors": 6, "steps": 6, "without_gradient": 0, "model_steps": 6, "waiting": 6} | changes
    assert CHECKS["steps_applied"]()(watched(e.OtherOptimizer(**seen))).status is status


def test_an_optimizer_that_takes_the_place_of_one_that_never_stepped():
    """It is made within the loop, beside one from before."""
    trace = without(watched(e.OtherOptimizer(name="AdamW", tensors=6, model_steps=0, anew=True)), e.Step)
    finding = CHECKS["steps_applied"]()(trace)
    assert finding.status is Status.SUSPECTED
    assert "takes the first one's place from step 0 on" in finding.detail


@pytest.mark.parametrize(
    ("seen", "passes"),
    [
        ({"steps": 10, "begins": 4, "scored": 0}, False),
        ({"steps": 10, "begins": 4, "scored": 12}, True),
        ({"steps": 10, "begins": 200, "scored": 0}, True),  # a script may wait until then
    ],
)
def test_ranks_that_are_to_be_allocated_are(seen, passes):
    """AdaLoRA's allocator is to be called by the script."""
    found = CHECKS["calls_in_order"]()(adding(healthy(), e.RanksScored(**seen)))

    assert found.passed is passes
    assert ("update_and_allocate" in found.detail) is not passes


@pytest.mark.parametrize(
    "others",
    [
        (),
        (written(own=False, trained=0, earlier=LORA_B),),
        (written(trained=0, earlier=LORA_B, returned=True),),
        (written(own=False, trained=0, other=8),),
        (written(own=False, tensors=0, trained=0),),
        (written(own=False, trained=0, without_adapters=4),),
        (written(trained=0, other=4, resting=4),),
        (written(own=False, trained=0, earlier=LORA_B, start=True), written(own=False, trained=0, other=8)),
        (written(start=True), written(other=8)),
    ],
    ids=[
        "alone",
        "with the model from before",
        "with the start again",
        "with an average",
        "with an empty file",
        "with the base",
        "with another",
        "with an average that begins late",
        "with one in the same file",
    ],
)
def test_what_is_saved_beside_the_trained_model_is_the_scripts_own(others):
    """A reference, an average, anything; an average may be all that is saved."""
    assert CHECKS["saved_as_trained"]()(watched(written(), *others)).passed
    assert CHECKS["saved_as_trained"]()(watched(written(own=False, trained=0, other=8))).passed


@pytest.mark.parametrize(
    "metric", ["eval_loss", "wer", "eval_f1", "eval_rouge2", "eval_accuracy", "my_score", "error_auc"]
)
@pytest.mark.parametrize("greater", [True, False])
def test_the_best_checkpoint_is_best_by_its_metric(metric, greater):
    """A name tells which direction is better, or nothing."""
    wrong = metric in (("eval_loss", "wer") if greater else ("eval_f1", "eval_rouge2", "eval_accuracy"))
    finding = CHECKS["saved_as_trained"]()(watched(e.BestChosen(metric=metric, greater=greater)))
    assert finding.status is (Status.SUSPECTED if wrong else Status.PASSED)


@pytest.mark.parametrize(
    ("last", "status"),
    [
        ([written(own=False, trained=0, earlier=LORA_B, other=2)], Status.SUSPECTED),
        ([written(own=False, trained=0, without_adapters=4)], Status.SUSPECTED),
        ([written(own=False, trained=0, without_adapters=4, unloaded=True), written()], Status.SUSPECTED),
        ([written(own=False, trained=0, earlier=LORA_B), written()], Status.PASSED),
        ([written(own=False, trained=0, earlier=LORA_B[:1], other=8)], Status.PASSED),
        ([], Status.PASSED),
    ],
    ids=["the start", "the plain base", "a base without its adapters", "both", "an average", "nothing"],
)
def test_what_is_saved_after_the_training_counts_by_itself(last, status):
    """A checkpoint of the training says nothing of the file that the script keeps."""
    trace = watched(written())
    trace = Trace(trace.header, (trace.main, *(attempt("read back", record) for record in last)))
    assert CHECKS["saved_as_trained"]()(trace).status is status


@pytest.mark.parametrize(
    ("lines", "status"),
    [(dict.fromkeys(LORA_B, "train.py:40"), Status.UNJUDGED), ({LORA_B[0]: "train.py:40"}, Status.FAILED)],
)
def test_what_a_loops_own_code_alone_writes_between_steps_may_be_meant(lines, status):
    """Lookahead, clipping, noise; a tensor that anything else wrote, too, is flagged."""
    changed = adding(
        without(healthy(), e.Continuity),
        e.Continuity(moments=13, trained=8, frozen=68, trained_changed=dict.fromkeys(LORA_B, 3), frozen_changed={}),
        e.WrittenByScript(lines=lines),
    )
    found = CHECKS["weights_change_only_in_steps"]()(changed)

    assert found.status is status
    assert (
        "train.py:40 writes to trained tensors between steps, first before step 3" in found.detail
    ) is found.expected


@pytest.mark.parametrize(
    ("checkpointing", "calls", "recomputed", "status"),
    [
        (False, 4, 0, Status.PASSED),
        (False, 8, 0, Status.PASSED),  # a teacher, a reference, a second view of the rows
        (False, 8, 4, Status.FAILED),
        (False, 2, 0, Status.FAILED),
        (True, 8, 4, Status.PASSED),
        (True, 12, 4, Status.PASSED),
        (True, 8, 0, Status.FAILED),
    ],
)
def test_a_script_may_call_its_model_more_often_than_once_a_row(checkpointing, calls, recomputed, status):
    """What runs within the backward pass tells whether activations are recomputed."""
    trace = with_run(watched(), training={"gradient_checkpointing": checkpointing})
    counted = with_record(trace, e.LayerCalls, calls=calls, recomputed=recomputed)

    assert CHECKS["checkpointing_as_configured"]()(counted).status is status


@pytest.mark.parametrize(("dtypes", "status"), [({"float32": 20}, Status.FAILED), ({"int8": 14}, Status.PASSED)])
def test_a_base_in_8_bit_is_held_to_what_it_rounds_to(dtypes, status):
    """Its products round what they are given, in fp32 too: rows in other batches come out a step apart."""
    trace = with_record(with_record(watched(), e.Census, frozen_dtypes=dtypes), e.Oracle, gradient_error=5e-4)

    assert CHECKS["accumulation_oracle"]()(trace).status is status


LN2 = 0.6931471824645996


def lasting(loss, **changes):
    """A training whose loss is this one in all steps, at rates and gradients that should move it, but for these."""
    return with_record(watched(), e.Step, **{"loss": loss, "learning_rate": 1e-4, "gradient_norm": 5.0, **changes})


@pytest.mark.parametrize(
    ("trace", "status"),
    [
        (watched(), Status.PASSED),
        (lasting(LN2), Status.FAILED),
        (lasting(-LN2), Status.FAILED),
        (with_record(lasting(LN2), e.Step, 3, loss=LN2 * (1 + 1e-6)), Status.PASSED),
        (lasting(LN2, learning_rate=1e-8), Status.UNJUDGED),
        (lasting(LN2, learning_rate=6e-6), Status.FAILED),
        (with_record(lasting(LN2, learning_rate=6e-6), e.Setup, precision="bf16"), Status.UNJUDGED),
        (lasting(LN2, gradient_norm=0.0), Status.FAILED),
        (lasting(0.0, gradient_norm=0.0), Status.FAILED),
        (with_record(lasting(0.0, gradient_norm=0.0), e.Step, 3, gradient_norm=0.2), Status.UNJUDGED),
        (lasting(LN2, gradient_norm=1e-3), Status.UNJUDGED),
        (lasting(LN2, learning_rate=math.nan), Status.UNJUDGED),
        (lasting(0.69140625), Status.UNJUDGED),
        (lasting(0.0), Status.UNJUDGED),
        (with_record(lasting(LN2), e.Step, 3, loss=math.nan), Status.UNJUDGED),
        (with_record(lasting(LN2), e.Step, 1, applied=False), Status.FAILED),
        (with_record(lasting(6e-8, gradient_norm=6e-8), e.Step, 3, loss=-7e-8), Status.SUSPECTED),
        (with_record(lasting(6e-8, gradient_norm=0.1), e.Step, 3, loss=-7e-8), Status.PASSED),
    ],
    ids=[
        "healthy",
        "ln 2",
        "negative",
        "moves",
        "small rate",
        "a usual rate",
        "a usual rate in 16 bit",
        "a weight of 0",
        "no reward",
        "one step's rewards",
        "small norm",
        "no rate",
        "16 bit",
        "0",
        "nan",
        "skipped",
        "rounding",
        "a policy on its own samples",
    ],
)
def test_a_loss_that_no_step_moves(trace, status):
    """DPO of a policy against itself; where the steps could not move it, or rounding hides it, nobody can tell."""
    finding = CHECKS["loss_moves"]()(trace)
    assert finding.status is status
    assert finding.expected == (status is Status.UNJUDGED)


def of_losses(losses):
    """What loss_moves finds in a healthy training with these losses."""
    trace = watched()
    for step, loss in enumerate(losses):
        trace = with_record(trace, e.Step, step, loss=loss)
    return CHECKS["loss_moves"]()(trace)


@pytest.mark.parametrize(
    ("losses", "status"),
    [
        ([LN2, 0.65, 0.6, LN2, 0.66, 0.62], Status.SUSPECTED),
        ([LN2, 0.65, 0.6, LN2 * (1 + 1e-6), 0.66, 0.62], Status.PASSED),
        ([0.0, 0.05, -0.01, 0.0, 0.06, -0.02], Status.PASSED),
        ([0.5, 0.625, 0.75, 0.5, 0.625, 0.75], Status.PASSED),
    ],
    ids=["ln 2 at each batch's first step", "another", "a policy on its own samples", "16 bit"],
)
def test_a_loss_that_comes_back(losses, status):
    """DPO whose reference is the policy itself moves within the steps of a batch, and begins at ln 2 with the next."""
    finding = of_losses(losses)

    assert finding.status is status, finding.detail
    assert ("0.6931472, recurs to the last digit in steps [3]" in finding.detail) is (status is Status.SUSPECTED)


@pytest.mark.parametrize(
    ("losses", "status"),
    [
        ([1.1, 1.1, 1.9, 2.9, 8.4, 2.8], Status.SUSPECTED),
        ([2.3, 2.5, 2.9, 3.4, 3.9, 4.2], Status.PASSED),
        ([0.01, 0.02, 0.05, 0.09, 0.04, 0.3], Status.PASSED),
        ([0.26, 0.31, 1.68, 1.25, 0.63, 0.06], Status.PASSED),
        ([-1.0, -0.5, 0.5, 2.0, 3.0, 4.0], Status.PASSED),
    ],
    ids=["a multiple", "a warm-up of noise", "near 0", "one low", "rewards"],
)
def test_a_loss_that_rises_to_a_multiple(losses, status):
    """A rate that is a hundred times too high; a task that gets harder may rise as well."""
    finding = of_losses(losses)

    assert finding.status is status, finding.detail
    assert ("rises from 1.1 to 2.9, medians" in finding.detail) is (status is Status.SUSPECTED)


def test_a_rate_is_looked_at_when_it_has_warmed_up():
    """A loop's optimizer has a rate of 0 when it is first seen."""
    trace = with_record(watched(given(adam_rate=0.0)), e.Step, 3, learning_rate=0.5)
    finding = CHECKS["settings_usual"]()(trace)
    assert finding.status is Status.SUSPECTED
    assert "is 0.5, usually 0 to 0.05" in finding.detail


@pytest.mark.parametrize(
    ("norm", "status"), [(0.0, Status.PASSED), (0.3, Status.FAILED)], ids=["no gradient", "a gradient"]
)
def test_a_step_without_a_gradient_moves_nothing(norm, status):
    """As the first ones of a policy whose samples all had the same reward."""
    trace = with_record(with_record(watched(), e.Step, 0, gradient_norm=norm), e.Update, 0, moved=False)
    trace = with_record(trace, e.Update, 0, expected_learning_rate=1e-4)
    assert CHECKS["steps_applied"]()(trace).status is status


@pytest.mark.parametrize(
    ("dropping", "status"),
    [(("h.0.drop",), Status.SUSPECTED), ((), Status.PASSED)],
    ids=["drops", "has nothing to drop"],
)
def test_a_model_that_drops_may_be_trained_in_eval_mode_on_purpose(dropping, status):
    """Where no object promises train mode."""
    finding = CHECKS["state_in_training"]()(with_record(watched(), e.TrainingState, dropping_nothing=dropping))
    assert finding.status is status
    assert ("which disables dropout: h.0.drop" in finding.detail) is bool(dropping)


@pytest.mark.parametrize(
    ("ratios", "changes", "premises", "status"),
    [
        (1, {}, BY_A_LOOP, Status.SUSPECTED),
        (0, {}, BY_A_LOOP, Status.FAILED),
        (1, {"adapters_disabled": ("h.0",)}, BY_A_LOOP, Status.FAILED),
        (1, {}, BY_A_SCRIPT, Status.FAILED),
    ],
    ids=["a policy", "another loss", "and more", "a trainer's"],
)
def test_a_policy_may_be_trained_in_eval_mode_on_purpose(ratios, changes, premises, status):
    """The likelihoods of its samples are those of the same function then. A trainer sets train mode."""
    trace = with_run(watched(e.ScoresGiven(functions=2, probabilities=(), ratios=ratios)), premises=premises)
    for number in range(len(trace.all(e.TrainingState))):
        trace = with_record(trace, e.TrainingState, number, modules_in_eval=("h.0.drop",), **changes)

    assert CHECKS["state_in_training"]()(trace).status is status


@pytest.mark.parametrize(("steps", "status"), [((0, 1, 2, 3, 4, 5), Status.SUSPECTED), ((0,), Status.PASSED)])
def test_a_normalisation_that_has_seen_no_batch(steps, status):
    """In every step, since an evaluation may come before the first one."""
    trace = watched()
    for step in steps:
        trace = with_record(trace, e.TrainingState, step, uncalibrated=("norm",))
    assert CHECKS["state_in_training"]()(trace).status is status


def test_a_teacher_that_drops_may_be_meant():
    """A model that is in eval mode by mistake is no question."""
    trace = watched(e.OtherModelDrops(model="Teacher"))
    finding = CHECKS["state_in_training"]()(trace)
    wrong = CHECKS["state_in_training"]()(with_record(trace, e.TrainingState, modules_in_eval=("model",)))

    assert (finding.status, wrong.status) == (Status.SUSPECTED, Status.FAILED)
    assert "Teacher learns nothing, is called in train mode, and draws dropout" in finding.detail
    assert finding.meaning.startswith("A teacher or a reference model is in train mode")
    normalising = CHECKS["state_in_training"]()(watched(e.OtherModelDrops(model="Teacher", normalises=True)))
    assert "and normalises by its batch" in normalising.detail


def test_a_reference_that_was_never_loaded():
    """It is a question of its own, whatever mode the model is in."""
    trace = watched(e.OtherModelDrops(model="Reference", drawn=True))
    finding = CHECKS["usual_tensors_learn"]()(trace)

    assert finding.status is Status.SUSPECTED
    assert finding.detail.startswith("Reference is called and learns nothing")
    assert CHECKS["state_in_training"]()(trace).status is Status.PASSED


@pytest.mark.parametrize(("different", "status"), [(1, Status.SUSPECTED), (2, Status.PASSED)])
def test_rows_of_one_token(different, status):
    """Another column than that of the tokens was given to the model."""
    rows = [e.RowRead(digest=str(n), tokens=5 + n, last=0, different=1) for n in range(9)]
    rows.append(e.RowRead(digest="last", tokens=9, last=0, different=different))
    steps = [e.StepInputs(step=n, digests=(f"batch {n}",), read=tuple(rows)) for n in range(4)]
    assert CHECKS["batches_change"]()(watched(*steps)).status is status


@pytest.mark.parametrize(
    ("texts", "batches", "status"),
    [(1, 4, Status.SUSPECTED), (2, 4, Status.PASSED), (4, 4, Status.PASSED)],
    ids=["one", "two", "another in each step"],
)
def test_rows_of_one_text_with_other_targets(texts, batches, status):
    """The first text of a batch was taken for each of its rows; a group of samples has one prompt for a step."""
    rows = [e.RowRead(digest=f"text {n % texts}", tokens=9, last=0) for n in range(batches)]
    steps = [e.StepInputs(step=n, digests=(f"batch {n}",), read=(row,)) for n, row in enumerate(rows)]
    assert CHECKS["batches_change"]()(watched(*steps)).status is status


@pytest.mark.parametrize(("scale", "status"), [(1.0, Status.PASSED), (0.9, Status.FAILED)], ids=["all", "not all"])
def test_a_trainer_that_counts_first_labels_is_told_once(scale, status):
    """The checks of loss and gradient pass where that explains all of their error."""
    trace = watched()
    rows = {window.step: len(window.rows) for window in trace.all(e.Window)}
    for number, step in enumerate(trace.steps):
        tokens = step.supervised_tokens + rows[step.step]
        loss = scale * step.loss * step.supervised_tokens / tokens
        trace = with_record(trace, e.Step, number, supervised_tokens=tokens, loss=loss)
    counted = {step.step: step.supervised_tokens for step in trace.steps}
    for number, oracle in enumerate(trace.all(e.Oracle)):
        error = rows[oracle.step] / counted[oracle.step] + (1 - scale)
        error = {"gradient_error": error, "worst_gradient_error": error}
        trace = with_record(trace, e.Oracle, number, replayed_loss=None, **error)
    for number, own in enumerate(trace.all(e.OwnLoss)):
        error = rows[own.step] / counted[own.step] + (1 - scale)
        trace = with_record(trace, e.OwnLoss, number, gradient_error=error)

    found = {name: CHECKS[name]()(trace) for name in ("supervised_tokens", "loss_oracle", "accumulation_oracle")}
    assert found["supervised_tokens"].status is Status.SUSPECTED
    assert {found["loss_oracle"].status, found["accumulation_oracle"].status} == {status}, found


def test_added_tokens_that_never_learn_are_their_own_cause():
    """Told from a base that was not loaded."""
    frozen = f"embed_tokens.weight ({e.setup.NEW_TOKENS_FROZEN}: from 259 on)"
    causes = [
        CHECKS["base_matches_file"]()(with_record(watched(), e.BaseFidelity, differing=(name,))).meaning
        for name in (frozen, "norm")
    ]
    assert [cause.startswith("Added tokens") for cause in causes] == [True, False]


@pytest.mark.parametrize(("tensors", "told"), [(2, True), (3, False)], ids=["all", "some"])
def test_a_base_that_differs_everywhere_may_be_trained_from_scratch(tensors, told):
    """One that differs in a part was loaded."""
    seen = with_record(watched(), e.BaseFidelity, tensors=tensors, differing=("norm", "head"))
    finding = CHECKS["base_matches_file"]()(seen)
    assert finding.status is Status.SUSPECTED
    assert ("trained from scratch" in finding.meant) is told


@pytest.mark.parametrize(
    ("premises", "taken", "told"),
    [({"causal_lm": "an encoder-decoder"}, 0, True), ({"causal_lm": "its own"}, 12, False), ({}, 0, False)],
    ids=["not compared", "loaded by the script", "compared in full"],
)
def test_a_model_that_is_not_compared_in_full_may_hold_nothing_of_its_file(premises, taken, told):
    """One of other rows, or a part of the script's own model."""
    trace = watched(e.WeightsDrawn(model="T5Model", folder="t5-base", tensors=35), loaded(taken=taken))
    finding = CHECKS["base_matches_file"]()(with_run(trace, premises=opened(premises)))

    assert (finding.status is Status.SUSPECTED) is told, finding.detail
    assert ("none of 35 matrices of the T5Model has its values in t5-base" in finding.detail) is told
    assert ("trained from scratch" in finding.meant) is told


@pytest.mark.parametrize("at", [None, 3], ids=["from the first step on", "after an evaluation"])
def test_a_model_that_was_never_in_train_mode_is_told_from_one_left_in_eval_mode(at):
    """The first has one cause, the second several."""
    trace = with_record(watched(), e.TrainingState, at, modules_in_eval=("model",))
    told = CHECKS["state_in_training"]()(trace).meaning
    assert told.startswith("Nothing calls model.train()")
    assert ("An evaluation" in told) is (at is not None)


@pytest.mark.parametrize(
    ("states", "status"),
    [
        (("one", "one", "two", "three"), Status.PASSED),
        (("one", "", "one", "", "one"), Status.SUSPECTED),
        (("one", "", "one", ""), Status.UNJUDGED),
    ],
    ids=["twice by chance", "steps that draw", "few that draw"],
)
def test_steps_that_draw_nothing_may_begin_alike(states, status):
    """Of those that draw, three are no chance."""
    trace = without(watched(), e.TrainingState)
    seen = [e.TrainingState(step=step, forwards=1, random_state=state) for step, state in enumerate(states)]
    finding = CHECKS["randomness_varies"]()(adding(trace, *seen, seen[0]))  # one record was written early
    assert finding.status is status


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"made_for": 24}, Status.PASSED),
        ({"made_for": 0}, Status.PASSED),
        ({"made_for": 48, "optimizer_steps": 3, "taken": 3}, Status.UNJUDGED),
        ({"made_for": 48, "taken": 0}, Status.UNJUDGED),
    ],
    ids=["twice as long", "a warm-up alone", "a trial", "never stepped"],
)
def test_a_schedule_may_go_on_for_a_little(changes, status):
    """And of a few steps nobody can tell."""
    assert CHECKS["schedule_ends"]()(watched(taken(**changes))).status is status


def rising_to(peak):
    """A healthy training of bf16 weights whose schedule rises to this rate."""
    trace = watched()
    trace = with_run(trace, training={**trace.header.run["training"], "learning_rate": peak})
    return with_record(trace, e.Census, trainable_dtypes={"bfloat16": 8})


@pytest.mark.parametrize(
    ("share", "last_rate", "told"),
    [
        (0.005, 1e-6, "a step changes at most 0.50% of the elements"),
        (0.6, 1e-6, "1 of 8 did not move"),
        (0.6, 2e-6, ""),
    ],
    ids=["nothing moves", "all but norms of 1", "all but those in a warm-up"],
)
def test_a_rate_that_16_bit_weights_round_away(share, last_rate, told):
    """Larger steps are yet to come in a warm-up."""
    trace = rising_to(1e-6)
    trace = with_record(trace, e.Movement, unmoved=LORA_B[:1], smallest_moved_share=0.0)
    trace = with_record(trace, e.Update, moved_share=share, expected_learning_rate=1e-6)
    trace = with_record(trace, e.Update, len(trace.all(e.Update)) - 1, expected_learning_rate=last_rate)
    finding = CHECKS["trainable_moved"]()(trace)

    assert finding.status is (Status.SUSPECTED if told else Status.UNJUDGED)
    assert told in finding.detail


@pytest.mark.parametrize(
    ("share", "peak", "status"),
    [(0.2, 1e-6, Status.SUSPECTED), (0.2, 2e-6, Status.SUSPECTED), (0.2, 3e-6, Status.PASSED)],
    ids=["at the highest rate", "in a warm-up to a low one", "in a warm-up to a high one"],
)
def test_16_bit_weights_that_lose_most_of_their_steps(share, peak, status):
    """At the rate that the schedule rises to, even where each tensor moves."""
    trace = rising_to(peak)
    for at in range(len(trace.all(e.Update))):
        trace = with_record(trace, e.Update, at, moved_share=share, expected_learning_rate=1e-6)
    assert CHECKS["trainable_moved"]()(trace).status is status


@pytest.mark.parametrize(("made_for", "steps"), [(10, 12), (100, 104), (100, 110), (0, 12)])
def test_a_schedule_may_end_a_little_before_the_training(made_for, steps):
    """As where the last window of an epoch is not counted."""
    assert CHECKS["schedule_ends"]()(watched(taken(made_for=made_for, taken=steps, optimizer_steps=steps))).passed


def test_a_part_that_no_gradient_reaches():
    """Which may be meant; what does not move at all is told first."""
    trace = watched(e.CutOff(tensors=LORA_B[:2]))
    finding = CHECKS["trainable_moved"]()(trace)
    of_another = CHECKS["trainable_moved"]()(watched(e.CutOff(tensors=(), left_out=LORA_B[:1])))
    never_called = CHECKS["trainable_moved"]()(watched(e.CutOff(tensors=(), replaced=("cross",))))

    assert (finding.status, finding.measured) == (Status.SUSPECTED, 2)
    assert (of_another.status, of_another.measured) == (Status.SUSPECTED, 1)
    assert (never_called.status, never_called.measured) == (Status.SUSPECTED, 1)
    still = with_record(trace, e.Movement, unmoved=LORA_B[:1])
    assert CHECKS["trainable_moved"]()(still).status is Status.FAILED


@pytest.mark.parametrize(
    ("check", "kind", "status"),
    [
        ("trainable_moved", "CutOff", Status.PASSED),
        ("evaluation_rows_unseen", "EvaluationRows", Status.UNJUDGED),
    ],
)
def test_a_look_that_failed_is_missing_evidence(check, kind, status):
    """Not a training without that record; what a check judges by other records is judged."""
    failed = e.ProbeFailed(probe="A", moment="step 2", error="TypeError: no number", kinds=(kind,))
    finding = CHECKS[check]()(watched(failed))

    assert (finding.status, finding.expected) == (status, False)
    assert "TypeError" in finding.detail


def test_what_has_no_gradient_in_any_step_is_told_from_what_has_no_rate():
    """Neither the optimizer nor rounding is to blame for it."""
    trace = with_record(watched(), e.Movement, unmoved=LORA_B[:1], smallest_moved_share=0.0)
    finding = CHECKS["trainable_moved"]()(with_record(trace, e.Gradients, zero=LORA_B[:1]))

    assert finding.detail.endswith("no step gave them a gradient")
    assert finding.meaning.startswith("A part of the model is outside the forward pass")
    assert finding.meaning.count(". ") == 0
    assert CHECKS["trainable_moved"]()(trace).meaning == CHECKS["trainable_moved"].meaning


@pytest.mark.parametrize(
    ("small", "status"), [(LORA_B[:1], Status.SUSPECTED), (LORA_B[1:2], Status.FAILED)], ids=["its own", "another's"]
)
def test_a_rate_below_the_last_digit_of_fp32_weights(small, status):
    """Norms of 1 stand still at 1e-8, and whatever else stands still does so for another reason."""
    trace = with_record(watched(), e.Movement, unmoved=LORA_B[:1], below_last_digit=small)

    assert CHECKS["trainable_moved"]()(trace).status is status


@pytest.mark.parametrize(
    ("of_means", "tokens", "status"),
    [(True, (40, 10), Status.SUSPECTED), (True, (40, 30), Status.PASSED), (False, (40, 10), Status.PASSED)],
    ids=["unequal", "nearly equal", "over all tokens"],
)
def test_means_of_unequal_micro_batches(of_means, tokens, status):
    """Averaged, each token of the smaller one counts more."""
    trace = with_run(with_record(watched(), e.Oracle, of_means=of_means), premises=BY_A_LOOP)
    trace = with_record(trace, e.Gradients, micro_batch_tokens=tokens)
    finding = CHECKS["accumulation_oracle"]()(trace)

    assert finding.status is status
    assert ("and token counts differ by a factor of 4.0" in finding.detail) is (status is Status.SUSPECTED)


@pytest.mark.parametrize(
    ("calls", "status"),
    [
        (("forward", "backward", "clip", "forward", "backward", "clip", "step", "clear"), Status.SUSPECTED),
        (("forward", "backward", "clip", "clear", "forward", "backward", "clip", "step", "clear"), Status.SUSPECTED),
        (("forward", "backward", "clear", "forward", "backward", "clip", "step", "clear"), Status.FAILED),
        (("forward", "backward", "forward", "backward", "clip", "step", "clear"), Status.PASSED),
        (("forward", "backward", "keep", "forward", "backward", "step", "clear"), Status.PASSED),
    ],
    ids=["each micro-batch", "two gradients, as MARS", "discarded besides", "once", "kept by the optimizer"],
)
def test_clipping_within_a_window(calls, status):
    """What has been added up is clipped again and again; what was clipped may have been kept before it is cleared."""
    trace = with_run(watched(), premises=BY_A_LOOP)
    for number in range(len(trace.all(e.CallOrder))):
        trace = with_record(trace, e.CallOrder, number, calls=calls)
    assert CHECKS["calls_in_order"]()(trace).status is status


@pytest.mark.parametrize(("lora", "told"), [(None, False), ({}, True)])
def test_tensors_that_do_not_learn_speak_of_adapters_where_there_are_some(lora, told):
    """A full training has none."""
    trace = watched()
    names = trace.all(e.Census)[0].trainable
    for number in range(len(trace.all(e.Census))):
        trace = with_record(trace, e.Census, number, trainable=names[1:])
    found = CHECKS["trainable_set"]()(trace if told else with_run(trace, lora=lora))

    assert found.status is Status.FAILED
    assert ("Adapters" in found.meaning) is told


@pytest.mark.parametrize(("unmatched", "status"), [(["v_porj"], Status.SUSPECTED), ([], Status.PASSED)])
def test_names_of_adapters_that_no_module_has(unmatched, status):
    """peft says nothing where another name of the list has one."""
    trace = watched()
    finding = CHECKS["trainable_set"]()(with_run(trace, lora={"unmatched": unmatched}))

    assert finding.status is status
    assert ("no module matches v_porj" in finding.detail) is bool(unmatched)


@pytest.mark.parametrize(
    ("name", "kind", "wrong"),
    [
        ("base_matches_file", e.BaseFidelity, {"differing": ("a tensor",)}),
        ("forward_matches_architecture", e.ForwardReference, {"error": 0.3}),
        ("adapters_start_random", e.AdapterStart, {"a_repeated": ("A",)}),
        ("adapter_algebra", e.AdapterStart, {"algebra_error": 0.3}),
        ("parameters_counted", e.Census, {"trainable_parameters": 1}),
    ],
)
def test_what_a_script_may_define_otherwise_is_a_question(name, kind, wrong):
    """The suite's own runs are held to it."""
    check = CHECKS[name]()

    assert check(with_record(watched(), kind, **wrong)).status is Status.SUSPECTED
    assert check(with_record(healthy(), kind, **wrong)).status is Status.FAILED


@pytest.mark.parametrize(
    ("name", "kind", "wrong"),
    [
        ("loss_oracle", e.Oracle, {"loss": 9.0}),
        ("accumulation_oracle", e.Oracle, {"gradient_error": 0.3}),
        ("updates_match_adamw", e.Update, {"update_error": 0.3, "moment_error": 0.3}),
    ],
)
def test_a_reference_that_nothing_confirms_is_a_suspicion(name, kind, wrong):
    """Where it differs in all that is compared, of a model that is not its library class's."""
    own = {"architecture_known": {"source": "presumed", "where": "the model contains the script's own Beside"}}
    known = without(with_record(watched(), kind, **wrong), e.OwnLoss)
    unknown, check = with_run(known, premises=own), CHECKS[name]()

    assert (check(known).status, check(unknown).status) == (Status.FAILED, Status.SUSPECTED)
    assert check(unknown).meant == UNWITNESSED
    healthy_one = watched().all(kind)[1]
    right = with_record(unknown, kind, 1, **{field: getattr(healthy_one, field) for field in wrong})
    assert check(right).status is Status.FAILED


def test_the_nearest_mean_is_chosen_where_nobody_declares_one():
    """A loop may average its micro-batches' means; a trainer declares which mean it takes."""
    trace = watched()
    first = trace.all(e.Oracle)[0]
    far = with_record(trace, e.Oracle, gradient_error=0.3)
    both = adding(far, *(dataclasses.replace(seen, of_means=True) for seen in trace.all(e.Oracle)))
    check = CHECKS["accumulation_oracle"]()

    assert first.gradient_error < 0.3
    assert check(both).status is Status.FAILED
    assert check(with_run(both, premises=BY_A_LOOP)).passed


@pytest.mark.parametrize(
    ("tensors", "status"),
    [((20, 31), Status.SUSPECTED), ((20, 40, 60), Status.SUSPECTED), ((20, 60, 40), Status.PASSED)],
    ids=["two samples", "to the end", "falls again"],
)
def test_a_list_that_is_emptied_again_is_no_leak(tensors, status):
    """An episode's moves are kept until it is over."""
    seen = healthy().all(e.LiveTensors)[0]
    samples = [dataclasses.replace(seen, step=3 + 2 * at, tensors=count) for at, count in enumerate(tensors)]
    trace = with_run(adding(without(healthy(), e.LiveTensors), *samples), features=list(FEATURES), premises=BY_A_SCRIPT)
    assert CHECKS["live_tensors_flat"]()(trace).status is status


@pytest.mark.parametrize(
    ("last", "learning", "status"),
    [(33, 24, Status.SUSPECTED), (33, 40, Status.UNJUDGED), (20, 40, Status.PASSED)],
    ids=["more than learn", "a critic's loop", "nothing of it"],
)
def test_what_a_late_optimizer_brings_is_not_judged(last, learning, status):
    """The variables of its loop appear once; a model that is kept in each step brings more tensors than it trains."""
    seen = healthy().all(e.LiveTensors)[0]
    counts = ((3, 20, 12), (5, last, learning))
    samples = [dataclasses.replace(seen, step=step, tensors=n, learning=known) for step, n, known in counts]
    trace = with_run(adding(without(healthy(), e.LiveTensors), *samples), features=list(FEATURES), premises=BY_A_SCRIPT)
    assert CHECKS["live_tensors_flat"]()(trace).status is status


@pytest.mark.parametrize(
    ("unmoved", "rule_known", "status"),
    [((0,), False, Status.PASSED), ((0,), True, Status.FAILED), ((4,), False, Status.FAILED)],
    ids=["an own warm-up", "a known rule", "in the middle"],
)
def test_an_unknown_optimizer_may_begin_with_a_step_of_zero(unmoved, rule_known, status):
    """Its own schedule multiplies the group's rate by 0 there."""
    trace = watched()
    for number, update in enumerate(trace.all(e.Update)):
        trace = with_record(trace, e.Update, number, moved=update.step not in unmoved, expected_learning_rate=1e-3)
    known = {} if rule_known else {"update_rule_known": "another optimizer"}
    trace = with_run(trace, premises=opened(known))
    assert CHECKS["steps_applied"]()(trace).status is status


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        (("clip nothing", "forward", "backward", "step", "clear"), "between zero_grad and backward"),
        (("forward", "clip nothing", "idle step", "schedule"), "no backward pass has given its tensors a gradient"),
        (("forward", "backward", "step", "clip in vain", "clear"), "after the optimizer step alone"),
        (("forward", "backward", "clip", "step", "clip in vain", "clear"), ""),
    ],
)
def test_clipping_that_changes_no_gradient_in_use_is_asked_about(calls, words):
    """As a habit: it runs between zero_grad and backward, in no step with a pass, or when gradients are used up."""
    trace = watched()
    for number in range(len(trace.all(e.CallOrder))):
        trace = with_record(trace, e.CallOrder, number, calls=calls)
    finding = CHECKS["calls_in_order"]()(trace)
    assert finding.status is (Status.SUSPECTED if words else Status.PASSED)
    assert words in finding.detail
