"""A training that is not ours: the rows it was given, what it reported, how it evaluated."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from tunecheck.core.check import Check, NumericCheck, relative_error, some, worst_of
from tunecheck.core.errors import MissingEvidence
from tunecheck.core.evidence import (
    AttemptPurpose,
    BaseTokens,
    Census,
    EvaluationSeen,
    Gradients,
    Logged,
    Movement,
    Rates,
    ReadBack,
    RowLengths,
    RowsGiven,
    RowSpans,
    Window,
)
from tunecheck.core.finding import Finding
from tunecheck.core.premises import Premise
from tunecheck.core.row_spans import answers_lost, beginnings_lost, labels_lost
from tunecheck.core.trace import Trace

SAME_BATCH = "a test of the training code learns one batch by heart"
FEW = 4
"""Rows that may all be the same by chance of a data set."""
ENOUGH = 8
"""Rows of which a share says something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelsAsConfigured(Check):
    """Labels are the tokens at their place, in the base's own vocabulary; padding and what is declared to be masked are
    not learned, the end is.
    """

    premises: ClassVar[frozenset[Premise]] = frozenset({Premise.CAUSAL_LM, Premise.ROWS_FOLLOWED, Premise.LABELS_KNOWN})
    applies_to: ClassVar[frozenset[str]] = frozenset({"given_rows"})
    meaning: ClassVar[str] = (
        "labels were shifted in the collator, which the loss does again; the padding token is the end token, and both "
        "are masked, so that the model never learns to stop; labels are cut off and tokens are not; the answer is not "
        "found in a part of the rows; prompts are learned though answers alone are declared; the tokenizer is another "
        "model's"
    )
    remedy: ClassVar[str] = (
        "read the example below; mask padding by the attention mask, not by the token; give the tokenizer a padding "
        "token of its own; look at the collator and at the template's {% generation %} marks"
    )

    max_unsupervised_share: float = 0.25
    """Of the rows that are shorter than the longest one: data sets hold some without an answer."""
    max_other_share: float = 0.5
    """Of the tokens that the base's tokenizer knows: those with another number there."""

    def judge(self, trace: Trace) -> Finding:
        windows, seen = trace.all(Window), trace.one(RowsGiven)
        problems = {kind: (w.step, example) for w in reversed(windows) for kind, example in w.problems.items()}
        told = [f"step {step}: {kind} ({example})" for kind, (step, example) in problems.items()]
        if seen.end_tokens_masked and not seen.end_tokens_supervised:
            told.append(f"none of {seen.end_tokens_masked} end tokens that follow a supervised token is supervised")
        if seen.unsupervised == seen.rows:
            told.append("in no row is any token supervised")
        elif lost := answers_lost(trace.one(RowSpans).rows, self.max_unsupervised_share):
            told.append(lost)
        if lost := labels_lost(trace.one(RowSpans).rows):
            told.append(lost)
        if seen.beginnings >= seen.rows > 1:
            told.append("every row is learned at its beginning and none at its end: the prompt, not the answer")
        if (masked := trace.run.masked) and seen.first_token_supervised == seen.rows:
            told.append(f"{masked}_only_loss is declared, and every row is supervised from its first token")
        told += [
            f"{known.other} of {known.tokens} tokens have another number in the tokenizer beside the base's weights "
            f"({known.example})"
            for known in trace.main.all(BaseTokens)
            if known.tokens >= ENOUGH and known.other > self.max_other_share * known.tokens
        ]
        detail = "; ".join(told) or f"{seen.rows} rows, {seen.end_tokens_supervised} of their ends supervised"
        return self.found(not told, detail, measured=len(told), limit=0, compared=seen.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsComeOnce(Check):
    """Within an epoch no row comes more often than the data set holds it."""

    premises: ClassVar[frozenset[Premise]] = frozenset(
        {Premise.CAUSAL_LM, Premise.EVERY_ROW_SEEN, Premise.ROWS_DRAWN_ONCE}
    )
    applies_to: ClassVar[frozenset[str]] = frozenset({"given_rows"})
    meaning: ClassVar[str] = (
        "the loader or its iterator is made again in each step, a seed is set again, a sampler draws with replacement, "
        "or a resume replays rows: some are learned twice, others never"
    )
    remedy: ClassVar[str] = "make the iterator once an epoch; do not reseed in the loop; look at the sampler"

    def judge(self, trace: Trace) -> Finding:
        windows, seen = trace.all(Window), trace.one(RowsGiven)
        digests = [digest for window in windows for digest in window.digests]
        if len(digests) < 2:
            return self.unjudged("one micro-batch, which can repeat no other", expected=True)
        if seen.dataset_rows != 1 and len({row for window in windows for row in window.rows}) == 1 and seen.rows >= FEW:
            if any(lengths.cut >= seen.rows for lengths in trace.main.all(RowLengths)):
                return self.unjudged("every row is cut off where all are still the same; see rows_whole", expected=True)
            detail = f"all {seen.rows} rows are the same, in a data set of {seen.dataset_rows or 'unknown many'} rows"
            meant = "" if seen.dataset_rows else SAME_BATCH
            return self.found(False, detail, measured=seen.rows - 1, limit=0, meant=meant)
        if seen.uncertain and not seen.repeated:
            if len(set(digests)) == 1:
                detail = f"all {len(digests)} micro-batches are the same"
                return self.found(False, detail, measured=len(digests) - 1, limit=0, meant=SAME_BATCH)
            reason = f"{seen.uncertain} rows came again, and the data set does not tell how often it holds them"
            return self.unjudged(reason, expected=True)
        detail = f"{seen.rows} rows of an epoch"
        if seen.resumed_after:
            detail += f", resumed after {seen.resumed_after}"
        if seen.repeated:
            detail += f", {len(seen.repeated)} of them more often than in the data set: {some(seen.repeated, 2)}"
        if seen.replayed:
            detail += f", {len(seen.replayed)} of them done in this epoch before the resume: {some(seen.replayed, 2)}"
        wrong = len(seen.repeated) + len(seen.replayed)
        proven = seen.replayed or len(set(digests)) == 1  # no sampler draws one batch in every step
        meant = "" if proven else "a sampler that draws with replacement, by weight, say, repeats rows"
        return self.found(not wrong, detail, measured=wrong, limit=0, meant=meant)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsWhole(Check):
    """Rows are whole, rather than cut off at the beginning or the end where they reach their longest length.

    Not judged for running text, whose rows are learned whole and begin differently, or where no row's end is known.
    """

    premises: ClassVar[frozenset[Premise]] = frozenset({Premise.CAUSAL_LM, Premise.ROWS_FOLLOWED})
    applies_to: ClassVar[frozenset[str]] = frozenset({"given_rows"})
    convention: ClassVar[str] = "where the beginning of a row is all that matters, titles, say, the rest may be cut off"
    meaning: ClassVar[str] = (
        "the longest length is shorter than many rows, which loaders shorten without a word: the model learns answers "
        "without an end, or no answers at all; a collator that keeps the last tokens of a row drops its prompt"
    )
    remedy: ClassVar[str] = (
        "raise the longest length (max_length, cutoff_len), or leave out rows that exceed it; look for slices in the "
        "collator"
    )

    max_cut_share: float = 0.05
    """Of the rows that lose their end; a few that are too long are in many data sets."""
    max_beginning_share: float = 0.5
    """Of the rows that lose their beginning: one that has the longest length may be whole."""
    min_cut: int = 2
    """Rows cut off below which it may be chance."""

    def judge(self, trace: Trace) -> Finding:
        seen = trace.one(RowsGiven)
        if not trace.main.all(RowLengths):
            return self.unjudged("no end token is known by which a row's end could be told", expected=True)
        lengths = trace.one(RowLengths)
        rows = lengths.full + lengths.short
        if rows < ENOUGH:
            return self.unjudged(f"{rows} rows say nothing of a share", expected=True)
        padded = any(window.inputs for window in trace.all(Window))  # which is no beginning that is cut off
        if not padded and (share := beginnings_lost(trace.one(RowSpans).rows) / rows) > self.max_beginning_share:
            detail = (
                f"{share:.0%} of {rows} rows have {lengths.longest} tokens and a learned end: the beginning is cut off"
            )
            return self.found(False, detail, measured=share, limit=self.max_beginning_share)
        if seen.first_token_supervised >= seen.rows and not lengths.begin_alike:
            return self.unjudged("every row is learned whole, as running text is", expected=True)
        all_full = not lengths.short and (lengths.declared or lengths.begin_alike)
        if not lengths.short_ended and not all_full and not seen.end_tokens_supervised:
            return self.unjudged("no row is learned to the tokenizer's end token", expected=True)
        share = lengths.cut / rows
        detail = f"{lengths.cut} of {rows} rows ({share:.0%}) are cut off at {lengths.longest} tokens"
        fits = share <= self.max_cut_share or lengths.cut < self.min_cut
        return self.found(fits, detail, measured=share, limit=self.max_cut_share)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumedAsConfigured(Check):
    """A training whose arguments name a checkpoint does not begin at its first step."""

    premises: ClassVar[frozenset[Premise]] = frozenset()
    applies_to: ClassVar[frozenset[str]] = frozenset({"resume_declared"})
    meaning: ClassVar[str] = (
        "the script does not hand the checkpoint to train(), which reads nothing of it from the arguments: what was "
        "trained before is lost, and the schedule begins anew"
    )
    remedy: ClassVar[str] = "call trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)"

    def judge(self, trace: Trace) -> Finding:
        training = trace.run.training
        detail = f"the training begins after {training.first_step} steps, the declared checkpoint's are "
        detail += f"{training.resume_steps}"
        return self.found(training.first_step > 0, detail, measured=training.first_step, limit=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RatesAsConfigured(Check):
    """Every tensor has the learning rate that is declared for it, before the schedule's factor."""

    premises: ClassVar[frozenset[Premise]] = frozenset()
    applies_to: ClassVar[frozenset[str]] = frozenset({"watched"})
    meaning: ClassVar[str] = "groups of the optimizer are made wrongly: a part of the model learns too fast, or hardly"
    remedy: ClassVar[str] = "print the rate of every group; give the groups to the optimizer yourself"

    def judge(self, trace: Trace) -> Finding:
        if not trace.main.all(Rates):
            return self.unjudged("the script makes the optimizer itself, and declares no rates", expected=True)
        seen = trace.one(Rates)
        detail = f"{seen.tensors} tensors have the rate that is declared for them"
        if seen.wrong:
            wrong = [f"{name} {what}" for name, what in seen.wrong.items()]
            detail = f"{len(wrong)} of {seen.tensors} tensors have another rate: {some(wrong, 2)}"
        return self.found(not seen.wrong, detail, measured=len(seen.wrong), limit=0, compared=seen.tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReadsBack(NumericCheck):
    """What the script saves after the training, adapters merged or all weights, loads as the same function."""

    premises: ClassVar[frozenset[Premise]] = frozenset({Premise.CAUSAL_LM, Premise.FILES_WRITTEN_HERE})
    applies_to: ClassVar[frozenset[str]] = frozenset({"watched"})
    meaning: ClassVar[str] = (
        "the saved files hold other weights than the model, or its configuration says something else of them: a head "
        "that is tied again, a tensor that is left out or renamed"
    )
    remedy: ClassVar[str] = (
        "compare the file's names and tensors with model.state_dict(), and config.json's tie_word_embeddings with what "
        "was trained"
    )

    max_error_fp32: float = 1e-4
    max_error_16bit: float = 0.05

    def judge(self, trace: Trace) -> Finding:
        saved = [
            seen for a in trace.attempts if a.start.purpose == AttemptPurpose.READ_BACK for seen in a.all(ReadBack)
        ]
        if not saved:
            return self.unjudged("the script saved no whole model after the training", expected=True)
        seen, limit = worst_of(saved, key=lambda seen: seen.logit_difference), self.limit(trace)
        detail = f"{len(seen.files)} files, logits differ by {seen.logit_difference:.2g}"
        return self.found(seen.logit_difference <= limit, detail, measured=seen.logit_difference, limit=limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossLogged(NumericCheck):
    """What the log says of the loss is the mean of the steps since it last did."""

    premises: ClassVar[frozenset[Premise]] = frozenset({Premise.EVERY_ROW_SEEN, Premise.LOSS_REPORTED})
    applies_to: ClassVar[frozenset[str]] = frozenset({"watched"})
    meaning: ClassVar[str] = (
        "the logged loss is scaled (by the accumulation steps, by the processes) or is another one than that which is "
        "trained: a curve that cannot be compared with any other"
    )
    remedy: ClassVar[str] = "compare the two numbers; look at overrides of compute_loss, training_step and log"

    max_error_fp32: float = 2e-3
    """transformers before 5 rounds to four digits after the point, later ones to four digits."""
    max_error_16bit: float = 5e-3
    rounding: float = 1e-4
    """Absolute error that rounding to four digits may add."""

    def judge(self, trace: Trace) -> Finding:
        losses, limit = [step.loss for step in trace.steps], self.limit(trace)
        pairs, before = [], 0
        for logged in trace.main.all(Logged):
            if logged.loss is None or logged.steps > len(losses):
                continue
            if logged.steps > before:
                pairs.append((logged, sum(losses[before : logged.steps]) / (logged.steps - before)))
            before = logged.steps
        if not pairs:
            return self.unjudged("no loss was logged in the steps that were listened to", expected=True)
        logged, mean = worst_of(pairs, key=lambda pair: _beyond(pair[0].loss or 0.0, pair[1], self.rounding))
        error = _beyond(logged.loss or 0.0, mean, self.rounding)
        detail = f"after step {logged.steps}: logged {logged.loss:.6g}, the steps' mean is {mean:.6g}"
        return self.found(error <= limit, detail, measured=error, limit=limit)


def _beyond(value: float, wanted: float, rounding: float) -> float:
    """Return the relative error that rounding by this much does not explain."""
    if math.isnan(value) or math.isnan(wanted):
        return math.nan
    return 0.0 if abs(value - wanted) <= rounding else relative_error(value, wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReported(NumericCheck):
    """An evaluation takes every row in eval mode without gradients, changes nothing, reports its logits' mean loss."""

    premises: ClassVar[frozenset[Premise]] = frozenset({Premise.CAUSAL_LM, Premise.EVERY_ROW_SEEN})
    applies_to: ClassVar[frozenset[str]] = frozenset({"evaluates"})
    meaning: ClassVar[str] = (
        "dropout is active in evaluation, padding is counted, the mean is of other rows, or the model is left changed"
    )
    remedy: ClassVar[str] = (
        "sum negative log-likelihoods and divide by the supervised tokens once; call model.eval() before and "
        "model.train() after it"
    )

    max_error_fp32: float = 1e-3
    max_error_16bit: float = 5e-3

    def judge(self, trace: Trace) -> Finding:
        seen, limit = trace.main.all(EvaluationSeen), self.limit(trace)
        if not seen:
            return self.unjudged("no evaluation took place", expected=True)
        problems = []
        for evaluation in seen:
            where = f"{evaluation.split} after step {evaluation.steps}"
            if evaluation.training_modules_during > 0:
                problems.append(f"{where}: {evaluation.training_modules_during} modules were in train mode")
            if evaluation.gradients_enabled:
                problems.append(f"{where}: gradients were enabled")
            if evaluation.weights_changed:
                problems.append(f"{where}: it changed trained weights")
            if evaluation.rows is not None and evaluation.rows < (evaluation.dataset_rows or 0):
                problems.append(f"{where}: {evaluation.rows} of {evaluation.dataset_rows} rows were evaluated")
        told = [e for e in seen if e.reported_loss is not None and e.token_mean_loss is not None]
        errors = [(_evaluation_error(e, trace.run.smoothing), e) for e in told]
        if not errors:
            if problems:
                return self.found(False, "; ".join(problems), measured=len(problems), limit=0)
            return self.unjudged("no evaluation gave its logits, as a loss in chunks does", expected=True)
        error, worst = worst_of(errors, key=lambda pair: pair[0])
        detail = f"{worst.split} after step {worst.steps}: reported {worst.reported_loss:.6g}, its logits give "
        detail += f"{worst.token_mean_loss:.6g} over {worst.tokens} tokens, {worst.batch_mean_loss:.6g} over batches"
        detail = "; ".join([*problems, detail])
        return self.found(error <= limit, detail, measured=error, limit=limit, problems=problems)


def _evaluation_error(seen: EvaluationSeen, smoothing: float) -> float:
    """Return the smallest error against the means that are in use: over tokens or batches, smoothed as declared or not.

    transformers' Trainer smooths in evaluation too.
    """
    reported = math.nan if seen.reported_loss is None else seen.reported_loss
    means = [mean for mean in (seen.token_mean_loss, seen.batch_mean_loss) if mean is not None]
    if smoothing and seen.token_mean_uniform is not None and seen.batch_mean_uniform is not None:
        uniform = seen.token_mean_uniform, seen.batch_mean_uniform
        means += [(1 - smoothing) * mean + smoothing * other for mean, other in zip(means, uniform, strict=True)]
    return min((relative_error(reported, mean) for mean in means), default=math.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsExpected(Check):
    """What was expected beside what the training declares is so: text that is learned, tensors, micro-batches."""

    premises: ClassVar[frozenset[Premise]] = frozenset()
    applies_to: ClassVar[frozenset[str]] = frozenset({"expectations"})
    meaning: ClassVar[str] = "the script does something else than you think: a mask, a name or an argument is not used"
    remedy: ClassVar[str] = "compare the expectation with the example below; correct the one that is wrong"

    def judge(self, trace: Trace) -> Finding:
        judged = {key: value for key, value in trace.run.expected.items() if key in JUDGED}
        problems = [f"{key}={value}: {told}" for key, value in judged.items() for told in JUDGED[key](trace, value)]
        detail = "; ".join(problems) or f"as expected: {', '.join(f'{key}={value}' for key, value in judged.items())}"
        return self.found(not problems, detail, measured=len(problems), limit=0)


def _texts(key: str, told: str) -> Callable[[Trace, Any], Iterator[str]]:
    """Return what judges the texts that are learned, which the probe has compared with the expression."""

    def problems(trace: Trace, _expression: str) -> Iterator[str]:
        seen = trace.one(RowsGiven)
        if key not in seen.expected:
            raise MissingEvidence(
                "the text of the rows is not known: the training has no tokenizer that tunecheck sees; "
                "call tunecheck.watch(..., tokenizer=...) in the script"
            )
        if rows := seen.expected[key]:
            yield f"{told} in {len(rows)} of {seen.rows} rows, for example {rows[0]}"

    return problems


def _trained(trace: Trace, expression: str) -> Iterator[str]:
    names = [name for name in trace.all(Census)[0].trainable if re.search(expression, name)]
    if not names:
        yield "no trained tensor has such a name"
    elif still := [name for name in (*trace.one(Movement).unmoved, *trace.one(Movement).idle) if name in names]:
        yield f"{len(still)} of {len(names)} such tensors did not move: {some(still, 2)}"


def _frozen(trace: Trace, expression: str) -> Iterator[str]:
    for told, names in (
        ("trained", trace.all(Census)[0].trainable),
        ("changed", trace.one(Movement).frozen_changed),
    ):
        if found := [name for name in names if re.search(expression, name)]:
            yield f"{len(found)} such tensors are {told}: {some(found, 2)}"


def _accumulation(trace: Trace, count: int) -> Iterator[str]:
    counts = [len(step.micro_batch_tokens) for step in trace.all(Gradients)]
    # a loader that ends leaves a short window: the last one of an epoch, not two in a row
    wrong = [step for step, seen in enumerate(counts) if seen > count or (seen < count and counts.count(seen) > 1)]
    if wrong or count not in counts:
        shown = wrong[0] if wrong else 0
        yield f"step {shown} has {counts[shown]} micro-batches"


JUDGED: dict[str, Callable[[Trace, Any], Iterator[str]]] = {
    "supervised": _texts("supervised", "no such text is learned"),
    "unsupervised": _texts("unsupervised", "such text is learned"),
    "trained": _trained,
    "frozen": _frozen,
    "accumulation": _accumulation,
}
"""Key of an expectation to what is wrong in a trace, a sentence each; other keys are judged by checks of their own."""
