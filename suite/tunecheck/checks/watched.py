"""A training that is not ours: what it declares, reports, saves and is expected to do, and how it evaluates."""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

from tunecheck.core import evidence
from tunecheck.core.check import Check, NumericCheck, holding, recorded, relative_error, required, some, worst_of
from tunecheck.core.errors import NotApplicable
from tunecheck.core.finding import Finding
from tunecheck.core.premises import Premise
from tunecheck.core.trace import WITH_FIRST_LABELS, Trace


class ResumedAsConfigured(Check):
    """A training that names a checkpoint continues from that checkpoint's step."""

    needs = frozenset({"resume_declared"})
    meaning = "The script does not pass the checkpoint to trainer.train(), which ignores args.resume_from_checkpoint."
    remedy = "Call trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)."

    def judge(self, trace: Trace) -> Finding:
        first, declared = trace.run.training.first_step, trace.run.training.resume_steps
        detail = f"the training starts after step {first}, the declared checkpoint is of step {declared}"
        return self.found(first > 0, detail, measured=first, limit=1)


class RatesAsConfigured(Check):
    """Every tensor has its declared learning rate, before the schedule's factor."""

    needs = frozenset({"user_code"})
    without = (evidence.Rates, "the script builds its own optimizer, which declares no rates")
    meaning = "The optimizer's parameter groups are built wrongly. Part of the model trains too fast, or hardly at all."
    remedy = "Print the rate of every parameter group. Build the groups yourself, and pass them to the optimizer."

    def judge(self, trace: Trace) -> Finding:
        seen = trace.one(evidence.Rates)
        detail = f"{seen.tensors} tensors have their declared rate"
        if wrong := [f"{name} {what}" for name, what in seen.wrong.items()]:
            detail = f"{len(wrong)} of {seen.tensors} tensors have another rate: {some(wrong, 2)}"
        return self.at_most(len(seen.wrong), 0, detail, compared=seen.tensors)


class ExportReadsBack(NumericCheck):
    """The full model that the script saves after training gives the trained model's logits when loaded.

    This covers merged adapters and full weights.
    """

    needs = frozenset({"user_code", Premise.CAUSAL_LM, Premise.FILES_WRITTEN_HERE})
    meaning = """The saved files hold other weights than the model. The saved configuration contradicts them, for
    example by tying the head again. A tensor is missing or renamed."""
    remedy = "Compare the file with model.state_dict(), and tie_word_embeddings in config.json with the training."

    max_error_fp32: float = 1e-4
    max_error_16bit: float = 0.05

    def judge(self, trace: Trace) -> Finding:
        saved = required(trace.of_all_attempts(evidence.ReadBack), "the script saved no full model after training")
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
    meaning = "Dropout is active. The mean counts padding. Some rows are left out. The evaluation changes the model."
    remedy = "Sum log-likelihoods, and divide once by the supervised tokens. Call model.eval() before, train() after."

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
    """Supervised text, trained tensors and micro-batches are as --expect declares them."""

    needs = frozenset({"expectations"})
    meaning = "A mask, a name or an argument in the script does not do what you expect. Or the expectation is wrong."
    remedy = "Compare the example in this finding with your --expect, and correct the wrong one."

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
    if not (names := [name for name in trace.all(evidence.Census)[0].trainable if re.search(expression, name)]):
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
