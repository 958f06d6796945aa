"""A training that is not ours: the rows it was given, what it reported, how it evaluated."""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from tunecheck.core import evidence
from tunecheck.core.check import (
    Check,
    NumericCheck,
    enough,
    holding,
    recorded,
    relative_error,
    required,
    some,
    worst_of,
)
from tunecheck.core.errors import NotApplicable
from tunecheck.core.finding import Finding
from tunecheck.core.premises import ROWS_KNOWN, Premise
from tunecheck.core.row_spans import (
    BEGUN_LATE,
    DOUBTFUL,
    ENOUGH,
    LABELS_SHIFTED,
    MAY_BEGIN_LATE,
    PADDING_LEARNED,
    cut_off,
    distinct,
    row_problems,
)
from tunecheck.core.trace import WITH_FIRST_LABELS, Trace

FEWEST_CUT = 3
"""Rows whose labels end at the same place by accident hardly ever."""
SAME_BATCH = "a test of the training code overfits one batch"
FEW = 4
"""Rows that may all be the same by chance of a data set."""
LABEL_CAUSES = {
    LABELS_SHIFTED: "The collator shifts labels, and the loss shifts them again.",
    PADDING_LEARNED: "Padding keeps its labels, since nobody sets them to -100.",
}
"""Problem of a row to its cause, where it has only one."""
ENDS_MASKED = "The padding token is also the end token, and both are masked, so that the model never learns to stop."
ENDS_OTHERWISE = "rows may end with a mark of their own, and these tokens be padding that is attended to"
LABELS_CUT = "Labels are truncated but tokens are not."
PROMPTS_LEARNED = "Prompts are supervised though only answers are declared."
OTHER_TOKENIZER = "The tokenizer belongs to another model."
ANSWER_MASKED = "The text whose labels are masked as the prompt holds the answer, too."


class LabelsAsConfigured(Check):
    """Labels are the input tokens at the same positions; the model shifts them.

    Padding and prompts declared as masked are not supervised, and the end token is. Tokens come from the base model's
    own vocabulary. Only a row begins with the start token, no answer within it, and no row with its prompt twice. No
    prompt shows its answer. A user's turn is supervised only beside all others.
    """

    needs = ROWS_KNOWN | {"user_code"}
    meaning = f"""{LABEL_CAUSES[LABELS_SHIFTED]} {LABEL_CAUSES[PADDING_LEARNED]} {ENDS_MASKED} {LABELS_CUT} The response
    template does not match some rows. {PROMPTS_LEARNED} {ANSWER_MASKED} {OTHER_TOKENIZER}
    {" ".join(cause for *_, cause in DOUBTFUL.values())} {BEGUN_LATE}"""
    remedy = """Compare labels with tokens: run tunecheck rows. Mask padding by the attention mask, not by the token id.
    Give the tokenizer a padding token of its own. Check the collator, and the {% generation %} marks of the
    template."""

    max_unsupervised_share: float = 0.25
    """Share of the rows shorter than the longest one. Some data sets hold rows without an answer."""
    max_other_share: float = 0.5
    """Share of the tokens that have another id in the base model's tokenizer."""
    max_doubtful_share: float = 0.75
    """Share of the rows that look alike in a way that some mean. A few rows may quote a special token."""

    def judge(self, trace: Trace) -> Finding:
        windows, seen = trace.all(evidence.Window), trace.one(evidence.RowsGiven)
        kinds = row_problems(windows)
        told = {words: LABEL_CAUSES.get(kind, "") for words, kind in kinds.items()}
        rows, share = trace.one(evidence.RowSpans).rows, self.max_unsupervised_share
        shifted = LABELS_SHIFTED in kinds.values()  # so are the labels of end tokens
        masked_ends = 0 if seen.end_tokens_supervised or shifted else seen.end_tokens_masked
        unseen = f"none of the {masked_ends} end tokens after supervised text is supervised"
        # of a row that is not padded the last token is its own
        padding = seen.ends_or_padding > 0 and any(row.learned and not row.behind for row in rows)
        doubtful = 0 < masked_ends == seen.ends_or_padding and not padding
        if masked_ends and not padding and not doubtful:
            told[unseen] = ENDS_MASKED
        longest = max((row.tokens for row in rows), default=0)
        short = [row for row in distinct(rows) if row.tokens < longest]
        if seen.unsupervised == seen.rows:
            told["no row has a supervised token"] = ""
        elif (empty := sum(not row.learned for row in short)) >= FEWEST_CUT and empty > share * len(short):
            told[f"in {empty} of {len(short)} untruncated rows no token is supervised"] = ""
        elif (ends := sum(row.ended and row.learned == 1 for row in short)) >= FEWEST_CUT and ends > share * len(short):
            told[f"in {ends} of {len(short)} untruncated rows the end token alone is supervised"] = ANSWER_MASKED
        if lost := _labels_lost(rows):
            told[lost] = LABELS_CUT
        if seen.beginnings >= seen.rows > 1:
            told["every row is supervised at its start and none at its end: the prompt, not the answer"] = ""
        if (masked := trace.run.masked) and seen.first_token_supervised == seen.rows:
            words = f"{masked}_only_loss is declared, but every row is supervised from its first token"
            told[words] = PROMPTS_LEARNED
        for known in trace.records(evidence.BaseTokens):
            if known.tokens >= ENOUGH and known.other > self.max_other_share * known.tokens:
                words = f"{known.other} of {known.tokens} tokens have another id in the base model's tokenizer"
                told[f"{words} ({known.example})"] = OTHER_TOKENIZER
        if seen.begun_late and not told:
            detail = f"the first {seen.begun_late} tokens of every answer, behind the template, are not supervised"
            return self.at_most(seen.begun_late, 0, detail, meant=MAY_BEGIN_LATE, causes=[BEGUN_LATE])
        for field, (detail, meant, cause) in DOUBTFUL.items() if not told else ():
            if (found := getattr(seen, field)) >= ENOUGH and found > (limit := self.max_doubtful_share) * len(rows):
                detail = f"{found} of {len(rows)} {detail}"
                return self.at_most(found / len(rows), limit, detail, meant=meant, causes=[cause])
        fine = f"{seen.rows} rows, {seen.end_tokens_supervised} of their ends supervised"
        if doubtful and not told:
            return self.unless({unseen: ENDS_MASKED}, fine, compared=seen.rows, meant=ENDS_OTHERWISE)
        return self.unless(told, fine, compared=seen.rows, meant=trace.why({Premise.LOSS_DECLARED}))


def _labels_lost(rows: Iterable[evidence.RowSpan]) -> str:
    """Return that the labels of rows end at one place of the batch, while their tokens go on; "" where they do not.

    What follows an answer rightly, as a user's turn, begins at another place in each row.
    """
    answers = [row for row in distinct(rows) if row.learned]
    column = max((row.column for row in answers), default=0)
    cut = [row for row in answers if row.behind and row.column == column]
    others = {row.behind for row in answers if row.column < column}
    if len(cut) < FEWEST_CUT or len({row.behind for row in cut}) < 2 or len(others) != 1:
        return ""
    return f"the labels of {len(cut)} of {len(answers)} rows end at column {column}, before their tokens do"


ONE_ROW = "The data set returns one row, whatever its index."
CUT_ALIKE = "every row is truncated, maybe before the rows differ"
REPLAYED = "A resume replays rows."


class RowsComeOnce(Check):
    """Within an epoch each row comes as often as the data set holds it."""

    needs = frozenset({"user_code", Premise.CAUSAL_LM, Premise.EVERY_ROW_SEEN, Premise.ROWS_DRAWN_ONCE})
    meaning = f"""Each step creates the loader or its iterator anew. A seed is reset. A sampler draws with replacement.
    {ONE_ROW} {REPLAYED} Some rows are then trained twice, others never."""
    remedy = "Create the iterator once per epoch. Do not reseed in the loop. Check the sampler for replacement=True."

    def judge(self, trace: Trace) -> Finding:
        windows, seen = trace.all(evidence.Window), trace.one(evidence.RowsGiven)
        digests = [digest for window in windows for digest in window.digests]
        required(len(digests) >= 2, "only one micro-batch: it has no other to equal")
        if seen.dataset_rows != 1 and len({row for window in windows for row in window.rows}) == 1 and seen.rows >= FEW:
            spans = [given.rows for given in trace.records(evidence.RowSpans) if given.end_tokens]
            cut = any(cut_off(rows, trace.run.longest)[1] >= seen.rows for rows in spans)
            detail = f"all {seen.rows} rows are equal, from a data set of {seen.dataset_rows or 'unknown many'} rows"
            meant = CUT_ALIKE if cut else "" if seen.dataset_rows else SAME_BATCH
            return self.at_most(seen.rows - 1, 0, detail, meant=meant, causes=[ONE_ROW])
        if seen.uncertain and not seen.repeated:
            reason = f"{seen.uncertain} rows recurred, and the data set does not show how often it holds them"
            required(len(set(digests)) == 1, reason)
            alike = f"all {len(digests)} micro-batches are equal"
            return self.at_most(len(digests) - 1, 0, alike, meant=SAME_BATCH)
        detail = f"{seen.rows} rows of an epoch"
        if seen.resumed_after:
            detail += f", resumed after {seen.resumed_after}"
        if seen.repeated:
            detail += f", {len(seen.repeated)} of them more often than in the data set: {some(seen.repeated, 2)}"
        if seen.replayed:
            detail += f", {len(seen.replayed)} of them trained before the resume: {some(seen.replayed, 2)}"
        proven = seen.replayed or len(set(digests)) == 1  # no sampler draws one batch in every step
        meant = "" if proven else "a sampler with replacement, such as a weighted one, repeats rows"
        causes = (REPLAYED,) if seen.replayed and not seen.repeated else ()
        return self.at_most(len(seen.repeated) + len(seen.replayed), 0, detail, meant=meant, causes=causes)


BEGINNINGS_CUT = (
    "The collator, or the tokenizer's truncation_side, keeps the last tokens of a row and drops its prompt."
)
ENDS_CUT = (
    "The length limit is shorter than many rows, and truncation is silent. The model then trains on answers without an "
    "end, or on no answers."
)
END_KEPT = "A tokenizer truncates most rows to one length, and keeps its last special token."
ONE_LENGTH = "a task may have rows of one length, and a text's beginning may be all that matters"


class RowsWhole(Check):
    """Rows reach the model whole, without truncation at either end.

    Not judged for plain text whose rows begin differently, or when the end token is unknown. Rows of another objective
    are compared with each other: the longest ones end as shorter ones do. So are the targets of an encoder-decoder.
    """

    needs = frozenset({"user_code"})
    convention = "the beginning of a row may be all that matters, as with titles"
    meaning = f"{ENDS_CUT} {BEGINNINGS_CUT} {END_KEPT}"
    remedy = """Raise the length limit (max_length, cutoff_len), or drop rows that exceed it. Search the collator for
    slices."""

    max_cut_share: float = 0.05
    """Share of the rows that lose their end. Many data sets hold a few rows that are too long."""
    max_beginning_share: float = 0.5
    """Share of the rows that lose their beginning. A row of exactly the longest length may be whole."""
    min_cut: int = 2
    """Truncated rows needed for a failure. Fewer may be chance."""
    min_alike: float = 0.9
    """Share of the shorter rows of another objective that end with one token."""
    max_full_share: float = 0.5
    """Share of the rows of another objective that are as long as the longest one. Texts differ in length."""
    min_pile: int = 4
    """Rows of that length over those of any other. Rows that are whole may be of a few lengths, with most of one."""

    def judge(self, trace: Trace) -> Finding:
        written = {t.digest: t.tokens for step in trace.records(evidence.StepInputs) for t in step.written if t.ended}
        if (pile := self._pile(written.values())) is not None:
            return self._piled(pile, len(written), "targets", "have an end token", END_KEPT)
        if reason := trace.why({Premise.CAUSAL_LM, Premise.ROWS_FOLLOWED}):
            return self._by_last_tokens(trace, reason)
        required(not (reason := trace.why({Premise.END_KNOWN})), reason)
        seen, given, declared = trace.one(evidence.RowsGiven), trace.one(evidence.RowSpans), trace.run.longest
        rows = enough(len(given.rows), ENOUGH, "rows")
        longest, cut = cut_off(given.rows, declared)
        padded = any(window.inputs for window in trace.all(evidence.Window))  # which is no beginning that is cut off
        most = max(row.tokens for row in given.rows)
        ended = [r for r in given.rows if r.tokens == most and r.ended and not r.behind and r.stretches == 1]
        several = len({row.learned for row in ended}) > 2  # else whole rows may have one length, too
        if not padded and several and (share := len(ended) / rows) > self.max_beginning_share:
            detail = f"{share:.0%} of {rows} rows have {longest} tokens and a supervised end: the start is cut"
            return self.at_most(share, self.max_beginning_share, detail, causes=[BEGINNINGS_CUT])
        if seen.first_token_supervised >= seen.rows and not given.begin_alike:
            raise NotApplicable("every row is supervised in full, as with plain text")
        short = [row for row in given.rows if row.tokens < longest]
        all_full = not short and (declared is not None or given.begin_alike)
        if not any(row.ended for row in short) and not all_full and not seen.end_tokens_supervised:
            raise NotApplicable("no row is supervised up to the tokenizer's end token")
        share = cut / rows
        detail = f"{cut} of {rows} rows ({share:.0%}) are truncated at {longest} tokens"
        fits = share <= self.max_cut_share or cut < self.min_cut
        return self.found(fits, detail, measured=share, limit=self.max_cut_share, causes=[ENDS_CUT])

    def _pile(self, lengths: Collection[int]) -> tuple[int, int] | None:
        """Return the most tokens of a row, and how many rows have so many; None where that is nothing unusual."""
        (most, full), *others = sorted(Counter(lengths).items(), reverse=True) or [(0, 0)]
        next_most = max((times for _, times in others), default=0)
        stands_out = full > max(self.max_full_share * len(lengths), self.min_pile * next_most)
        return (most, full) if most >= ENOUGH <= len(lengths) and stands_out else None

    def _piled(self, pile: tuple[int, int], rows: int, kind: str, ends: str, cause: str) -> Finding:
        detail = f"{pile[1]} of {rows} {kind} have {pile[0]} tokens, the most of all, and {ends}"
        return self.at_most(pile[1] / rows, self.max_full_share, detail, meant=ONE_LENGTH, causes=[cause])

    def _by_last_tokens(self, trace: Trace, reason: str) -> Finding:
        """Judge rows of which only their tokens are known: truncation makes many as long as the longest one."""
        rows = list({row.digest: row for step in trace.records(evidence.StepInputs) for row in step.read}.values())
        required(len(rows) >= ENOUGH, reason)
        lengths = Counter(row.tokens for row in rows)
        (_, alike), pile = Counter(row.last for row in rows).most_common(1)[0], self._pile([r.tokens for r in rows])
        end = "all" if alike >= self.min_alike * len(rows) else "not all"
        if pile is not None and (end == "all" or "pairs" in trace.run.features):  # a pair is no block of running text
            return self._piled(pile, len(rows), "rows", f"{end} end alike", END_KEPT if end == "all" else ENDS_CUT)
        (longest, _), *others = lengths.most_common(2)
        shorter = [row.last for row in rows if row.tokens < longest]
        piled_up = others and longest == max(row.tokens for row in rows)
        last, times = Counter(shorter).most_common(1)[0] if piled_up else (None, 0)
        required(2 * times >= ENOUGH and times >= self.min_alike * len(shorter), reason)
        cut = sum(row.tokens == longest and row.last != last for row in rows)
        detail = f"{cut} of {len(rows)} rows have {longest} tokens, and do not end as shorter ones do"
        fits = cut <= self.max_cut_share * len(rows) or cut < self.min_cut
        return self.found(fits, detail, measured=cut / len(rows), limit=self.max_cut_share, causes=[ENDS_CUT])


class ResumedAsConfigured(Check):
    """A training that names a checkpoint continues from that checkpoint's step."""

    needs = frozenset({"resume_declared"})
    meaning = """The script does not pass the checkpoint to train(), which ignores the arguments' value. Earlier
    progress is lost, and the schedule restarts."""
    remedy = "Call trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)."

    def judge(self, trace: Trace) -> Finding:
        training = trace.run.training
        first, declared = training.first_step, training.resume_steps
        detail = f"the training starts after step {first}, the declared checkpoint is of step {declared}"
        return self.found(first > 0, detail, measured=first, limit=1)


class RatesAsConfigured(Check):
    """Every tensor has its declared learning rate, before the schedule's factor."""

    needs = frozenset({"user_code"})
    without = (evidence.Rates, "the script builds its own optimizer, which declares no rates")
    meaning = """The optimizer's parameter groups are built wrongly. A part of the model then trains too fast, or hardly
    at all."""
    remedy = "Print the rate of every parameter group. Build the groups yourself, and pass them to the optimizer."

    def judge(self, trace: Trace) -> Finding:
        seen = trace.one(evidence.Rates)
        detail = f"{seen.tensors} tensors have their declared rate"
        if seen.wrong:
            wrong = [f"{name} {what}" for name, what in seen.wrong.items()]
            detail = f"{len(wrong)} of {seen.tensors} tensors have another rate: {some(wrong, 2)}"
        return self.at_most(len(seen.wrong), 0, detail, compared=seen.tensors)


class ExportReadsBack(NumericCheck):
    """The model that the script saves after training computes the trained model's function when loaded.

    This covers merged adapters and full weights.
    """

    needs = frozenset({"user_code", Premise.CAUSAL_LM, Premise.FILES_WRITTEN_HERE})
    meaning = """The saved files hold other weights than the model. The saved configuration contradicts them, for
    example by tying the head again. A tensor is missing or renamed."""
    remedy = """Compare names and tensors in the file with model.state_dict(). Check whether tie_word_embeddings in
    config.json matches the training."""

    max_error_fp32: float = 1e-4
    max_error_16bit: float = 0.05

    def judge(self, trace: Trace) -> Finding:
        saved = trace.of_all_attempts(evidence.ReadBack)
        saved = required(saved, "the script saved no full model after training")
        seen, limit = worst_of(saved, key=lambda seen: seen.logit_difference), self.limit(trace)
        detail = f"{len(seen.files)} files, logits differ by {seen.logit_difference:.2g}"
        return self.at_most(seen.logit_difference, limit, detail)


class LossLogged(NumericCheck):
    """The logged loss is the mean over the steps since the previous log."""

    needs = frozenset({"user_code", Premise.EVERY_ROW_SEEN, Premise.LOSS_REPORTED})
    meaning = """The logged loss is scaled by the accumulation steps or the number of processes. Or the log shows
    another loss than the trained one. The curve is then not comparable with any other."""
    remedy = """Divide the logged loss by the mean of the steps: the ratio names the factor. Search for overrides of
    compute_loss, training_step and log."""

    max_error_fp32: float = 2e-3
    """transformers before 5 rounds to four decimals, later versions to four significant digits."""
    max_error_16bit: float = 5e-3
    rounding: float = 1e-4
    """Absolute error that rounding to four digits may add."""

    def judge(self, trace: Trace) -> Finding:
        losses, limit = [step.loss for step in trace.steps], self.limit(trace)
        errors, before = [], 0
        for logged in trace.records(evidence.Logged):
            if logged.loss is None or logged.steps > len(losses):
                continue
            if logged.steps > before:
                mean = sum(losses[before : logged.steps]) / (logged.steps - before)
                rounded = abs(logged.loss - mean) <= self.rounding
                errors.append((0.0 if rounded else relative_error(logged.loss, mean), logged, mean))
            before = logged.steps
        errors = required(errors, "no loss was logged in the recorded steps")
        error, logged, mean = worst_of(errors, key=lambda found: found[0])
        detail = f"after step {logged.steps}: logged {logged.loss:.6g}, the steps' mean is {mean:.6g}"
        return self.at_most(error, limit, detail)


class EvaluationReported(NumericCheck):
    """An evaluation covers every row, runs in eval mode without gradients, and reports the mean loss of its logits.

    It leaves the model unchanged.
    """

    needs = frozenset({"evaluates", Premise.CAUSAL_LM, Premise.EVERY_ROW_SEEN})
    without = (evidence.EvaluationSeen, "no evaluation ran")
    meaning = """Dropout is active in evaluation. Padding counts in the mean. The mean covers other rows. The evaluation
    changes the model."""
    remedy = """Sum the negative log-likelihoods, and divide once by the supervised tokens. Call model.eval() before and
    model.train() after it."""

    max_error_fp32: float = 1e-3
    max_error_16bit: float = 5e-3

    def judge(self, trace: Trace) -> Finding:
        seen, limit, problems = trace.all(evidence.EvaluationSeen), self.limit(trace), []
        for e in seen:
            wrong = {
                f"{e.training_modules_during} modules were in train mode": e.training_modules_during > 0,
                "gradients were enabled": e.gradients_enabled,
                "trained weights changed": e.weights_changed,
                f"{e.rows} of {e.dataset_rows} rows were evaluated": e.rows is not None
                and e.rows < (e.dataset_rows or 0),
            }
            problems += [f"{e.split} after step {e.steps}: {sentence}" for sentence in holding(wrong)]
        proven = any(e.training_modules_during or e.weights_changed for e in seen)
        meant = "" if proven else "a script may report another mean, or that of some rows"
        told = [e for e in seen if e.reported_loss is not None and e.token_mean_loss is not None]
        errors = [(_evaluation_error(e, trace.run.smoothing), e) for e in told]
        other_loss = trace.why({Premise.TOKEN_MEAN_LOSS})
        if problems and (other_loss or not errors):
            return self.unless(problems, "", meant=meant)
        required(not other_loss, other_loss)
        errors = required(errors, "no evaluation returned logits, as with a chunked loss")
        error, worst = worst_of(errors, key=lambda pair: pair[0])
        detail = f"{worst.split} after step {worst.steps}: reported {worst.reported_loss:.6g}, its logits give "
        detail += f"{worst.token_mean_loss:.6g} over {worst.tokens} tokens, {worst.batch_mean_loss:.6g} over batches"
        detail = "; ".join([*problems, detail])
        first = max((trace.first_labels_counted(step.step) for step in trace.steps), default=0.0)
        if not problems and limit < error <= 2 * first:  # its rows may be shorter than those of the steps
            raise NotApplicable(detail + WITH_FIRST_LABELS)
        return self.at_most(error, limit, detail, problems=problems, meant=meant)


def _evaluation_error(seen: evidence.EvaluationSeen, smoothing: float) -> float:
    """Return the smallest error against the means that are in use: over tokens or batches, smoothed as declared or not.

    transformers' Trainer smooths in evaluation too.
    """
    reported = math.nan if seen.reported_loss is None else seen.reported_loss
    means = [mean for mean in (seen.token_mean_loss, seen.batch_mean_loss) if mean is not None]
    if smoothing and seen.token_mean_uniform is not None and seen.batch_mean_uniform is not None:
        uniform = seen.token_mean_uniform, seen.batch_mean_uniform
        means += [(1 - smoothing) * mean + smoothing * other for mean, other in zip(means, uniform, strict=True)]
    return min((relative_error(reported, mean) for mean in means), default=math.nan)


class AsExpected(Check):
    """The training does what --expect declares about supervised text, trained tensors and micro-batches."""

    needs = frozenset({"expectations"})
    meaning = "The script differs from your expectation: a mask, a name or an argument has no effect."
    remedy = "Compare the expectation with the example in this finding, and correct the wrong one."

    def judge(self, trace: Trace) -> Finding:
        judged = {key: value for key, value in trace.run.expected.items() if key in JUDGED}
        problems = [f"{key}={value}: {told}" for key, value in judged.items() for told in JUDGED[key](trace, value)]
        return self.unless(problems, f"as expected: {', '.join(f'{key}={value}' for key, value in judged.items())}")


def _texts(trace: Trace, key: str, told: str) -> Iterator[str]:
    """Yield in which rows the learned text, which the probe has compared with the expression, is another."""
    seen = trace.one(evidence.RowsGiven)
    unknown = "the text of the rows is unknown, because tunecheck finds no tokenizer"
    recorded(key in seen.expected, f"{unknown}: call tunecheck.watch(..., tokenizer=...) in the script")
    if rows := seen.expected[key]:
        yield f"{told} in {len(rows)} of {seen.rows} rows, for example {rows[0]}"


def _trained(trace: Trace, expression: str) -> Iterator[str]:
    names = [name for name in trace.all(evidence.Census)[0].trainable if re.search(expression, name)]
    if not names:
        yield "no trained tensor has a matching name"
        return
    seen = trace.one(evidence.Movement)
    if still := [name for name in (*seen.unmoved, *seen.idle) if name in names]:
        yield f"{len(still)} of {len(names)} matching tensors did not change: {some(still, 2)}"


def _frozen(trace: Trace, expression: str) -> Iterator[str]:
    trained, changed = trace.all(evidence.Census)[0].trainable, trace.one(evidence.Movement).frozen_changed
    for told, names in (("trained", trained), ("changed", changed)):
        if found := [name for name in names if re.search(expression, name)]:
            yield f"{len(found)} matching tensors are {told}: {some(found, 2)}"


def _accumulation(trace: Trace, count: int) -> Iterator[str]:
    counts = [len(step.micro_batch_tokens) for step in trace.all(evidence.Gradients)]
    # a loader that ends leaves a short window: the last one of an epoch, not two in a row
    wrong = [step for step, seen in enumerate(counts) if seen > count or (seen < count and counts.count(seen) > 1)]
    if wrong or count not in counts:
        shown = wrong[0] if wrong else 0
        yield f"step {shown} has {counts[shown]} micro-batches"


JUDGED: dict[str, Callable[[Trace, Any], Iterator[str]]] = {
    "supervised": lambda trace, _: _texts(trace, "supervised", "no matching text is supervised"),
    "unsupervised": lambda trace, _: _texts(trace, "unsupervised", "matching text is supervised"),
    "trained": _trained,
    "frozen": _frozen,
    "accumulation": _accumulation,
}
"""Key of an expectation to what is wrong in a trace, a sentence each; other keys are judged by checks of their own."""
JUDGED_BY = {
    "loss": ("loss_oracle", "accumulation_oracle", "gradients_averaged"),
    **dict.fromkeys(("learning_rate", "schedule", "schedule_steps", "warmup_steps"), ("learning_rate_trace",)),
}
"""Key of any other expectation to the checks that judge it, each where it can."""
