"""The numbers and texts that a model is judged by: evaluation, perplexity, generation."""

import math

from tunecheck.core.check import Check, NumericCheck, relative_error, some, worst_of
from tunecheck.core.evidence import Evaluation, EvaluationAudit, Generation, Setup
from tunecheck.core.finding import Finding
from tunecheck.core.trace import Trace


class EvaluationOracle(NumericCheck):
    """The configured evaluations took place, and no others; their losses equal other code's, in float64.

    Each against the mean over its own logits, the last also against the rows without masks.
    """

    applies_to = frozenset({"suite_rows"})
    meaning = (
        "padding counted, batch means averaged, wrong labels, or dropout active: perplexities beyond the "
        "vocabulary come from here"
    )
    remedy = "sum negative log-likelihoods and divide by the supervised tokens once, at the end"

    max_error_fp32: float = 1e-4  # 5e-6 measured
    max_error_16bit: float = 1e-2
    max_error_own_logits: float = 1e-4
    """Against the mean over the evaluation's own logits in float64, which no rounding of the model is in: 2e-7 measured
    in fp32, bf16 and fp16."""
    min_logit_digits: int = 20
    """In fp32, whose numbers have 24: a loss of many tokens averages the rounding of 16 bit away, its logits do not."""

    def judge(self, trace: Trace) -> Finding:
        limit, audits = self.limit(trace), trace.all(EvaluationAudit)
        exact, coarse = trace.one(Setup).precision == "fp32", False
        worst = worst_of(map(_error, audits), key=float)
        lines = []
        for audit in audits:
            lines.append(
                f"{audit.split}: reported {audit.reported_loss:.6f} over {audit.reported_tokens} tokens, "
                f"oracle {audit.oracle_loss:.6f} over {audit.oracle_tokens}"
            )
            if exact and audit.logit_digits < self.min_logit_digits:
                coarse = True
                lines[-1] += f", from logits of {audit.logit_digits} binary digits"
        missing, extra = _missing_and_extra(trace)
        lines += [f"never evaluated: {some(missing)}"] if missing else []
        lines += [f"evaluated though not configured: {some(extra)}"] if extra else []
        problems = [*missing, *extra, *(["coarse logits"] if coarse else [])]
        own = [(f"{e.split} before step {e.step}", e.loss, e.logits_loss) for e in trace.all(Evaluation)]
        compared = [(where, loss, wanted) for where, loss, wanted in own if wanted is not None]
        if compared:
            where, loss, wanted = worst_of(compared, key=lambda seen: relative_error(seen[1], seen[2]))
            error = relative_error(loss, wanted)
            lines.append(f"{where}: reported {loss:.6f}, {wanted:.6f} in float64 from the same logits")
            if worst <= limit and not problems and not error <= self.max_error_own_logits:
                return self.found(False, "; ".join(lines), measured=error, limit=self.max_error_own_logits)
        if all(len(set(audit.batch_tokens)) == 1 for audit in audits):
            lines.append("one batch, or batches of equal token counts: a mean of batch means does not show")
        return self.found(worst <= limit, "; ".join(lines), measured=worst, limit=limit, problems=problems)


def _error(audit: EvaluationAudit) -> float:
    """Return the relative error of the reported loss; infinite where it is the mean of other tokens."""
    same_tokens = audit.reported_tokens == audit.oracle_tokens
    return relative_error(audit.reported_loss, audit.oracle_loss) if same_tokens else math.inf


def _missing_and_extra(trace: Trace) -> tuple[list[str], list[str]]:
    """Return the evaluations, at start and end too, that did not take place, and those that are not configured."""
    evaluation, seen = trace.run.evaluation, {(held.step, held.split) for held in trace.all(Evaluation)}
    steps = (0, *evaluation.at, trace.run.training.max_steps)
    due = {(at, split) for at in steps for split in evaluation.splits}
    return _in_words(due - seen), _in_words(seen - due)


def _in_words(evaluations: set[tuple[int, str]]) -> list[str]:
    return [f"{split} before step {at}" for at, split in sorted(evaluations)]


class EvaluationMode(Check):
    """Evaluation runs in eval mode without a graph, repeats bit for bit, and changes no mode, weight or memory.

    What it computes is what the model as it stands computes, not another one that takes its place for the time.
    """

    applies_to = frozenset({"suite_rows"})
    meaning = (
        "dropout active in evaluation, activations kept, other weights than the trained ones evaluated, or a model "
        "left in eval mode for the rest of training"
    )
    remedy = "model.eval() and torch.no_grad() around it, and the former mode afterwards"

    def judge(self, trace: Trace) -> Finding:
        problems = [
            f"{seen.split} before step {seen.step}: the model as it is computes something else from the first batch"
            for seen in trace.all(Evaluation)
            if seen.model_repeats is False
        ]
        for audit in trace.all(EvaluationAudit):
            if audit.training_modules_during:
                problems.append(f"{audit.split}: {audit.training_modules_during} modules were in train mode")
            if audit.built_graph:
                problems.append(f"{audit.split}: gradients were enabled")
            if not audit.mode_restored:
                problems.append(f"{audit.split}: the modules' modes were not restored")
            if audit.kept_tensors > 0:
                problems.append(
                    f"{audit.split}: {audit.kept_tensors} tensors of an evaluation are still alive after it"
                )
            if audit.weights_changed:
                problems.append(f"{audit.split}: it changed the trained weights")
            if not audit.repeats:
                problems.append(f"{audit.split}: its first batch gives other logits when evaluated again")
        detail = "; ".join(problems) or "eval mode, no graph, equal twice, nothing kept or changed"
        return self.found(not problems, detail, measured=len(problems), limit=0)


MOST_DIGITS = 20.0
"""Nats up to which a perplexity is printed in full."""


class PerplexityBelowVocabulary(Check):
    """No evaluation, before, during or after training, gives a perplexity above the size of the vocabulary.

    Rows that the model cannot know, as emoji or codes, may begin above it: then it must not rise from there.
    """

    applies_to = frozenset({"suite_rows"})
    meaning = (
        "the evaluation is broken (labels shifted twice, padding counted, a sum instead of a mean), the weights were "
        "never loaded, or the training diverged: a uniform guess would do better"
    )
    remedy = "look at evaluation_oracle and base_matches_file first; if both are good, lower the rate"

    max_share: float = 1.0
    """Of ln V, the loss of a uniform guess."""
    max_rise: float = 1.1
    """Of the first loss of rows that the model does not know, where it is above that of a uniform guess: it falls in
    training, and held-out rows of another kind may rise a little."""
    max_share_random: float = 1.05
    """The same for random weights, whose logits scatter: their loss is worse than a uniform guess by half of the
    logits' variance, and an evaluation of few tokens by its sampling noise."""
    max_variance_share_random: float = 0.75
    """Of the logits' variance, width x initializer_range^2, which a wide model's random weights may be worse by: half
    is expected, 0.82 nats for LLaMA-7B (measured with two of its layers: 0.78), where 5 % of ln V are 0.52."""

    def judge(self, trace: Trace) -> Finding:
        architecture = trace.run.architecture
        vocabulary = architecture.vocab_size
        uniform = math.log(vocabulary)
        limit = uniform * self.max_share
        if not trace.pretrained:
            variance = architecture.hidden_size * architecture.initializer_range**2
            limit = max(uniform * self.max_share_random, uniform + self.max_variance_share_random * variance)
        evaluations = trace.all(Evaluation)
        starts = {seen.split: seen.loss for seen in evaluations if seen.step == 0 and seen.unfamiliar(limit)}
        limits = {seen.split: max(limit, self.max_rise * starts.get(seen.split, 0.0)) for seen in evaluations}
        worst = worst_of(evaluations, key=lambda seen: seen.loss / limits[seen.split])
        limit = limits[worst.split]
        perplexity = f"{math.exp(worst.loss):,.2f}" if worst.loss < MOST_DIGITS else f"e^{worst.loss:.3g}"
        detail = f"largest of {len(evaluations)}: {worst.split} before step {worst.step}, perplexity {perplexity}"
        return self.found(
            worst.loss <= limit, f"{detail}, {vocabulary:,} tokens in the vocabulary", measured=worst.loss, limit=limit
        )


class GenerationIsGreedy(NumericCheck):
    """Greedily generated tokens, and the logits behind them, are those of one plain forward over the same tokens.

    Each is the largest of the scores it was chosen by, the end token ends the answer, and the prompt is tokenised as
    in the rows that are trained on.
    """

    applies_to = frozenset({"generate"})
    meaning = (
        "wrong position ids, cache, padding side or mask in generation, or a penalty left in its settings: the model "
        "is right and its answers are not"
    )
    remedy = "pad on the left for batched generation, pass the attention mask, compare with use_cache=False"

    min_agreement: float = 0.9
    """Near ties may fall either way between the cached and the plain forward in 16 bit."""

    max_error_fp32: float = 1e-3
    """Of the logits: a cache and a plain forward multiply in other orders. In 16 bit of those in fp32 too."""
    max_error_16bit: float = 0.1

    def judge(self, trace: Trace) -> Finding:
        limit, answers = self.limit(trace), trace.all(Generation)
        worst = worst_of(answers, key=lambda answer: -answer.greedy_agreement)
        farthest = worst_of(answers, key=lambda answer: answer.logit_difference)
        detail = f"{worst.greedy_agreement:.0%} of the tokens of {worst.text[:60]!r} ({worst.when}); "
        detail += f"logits off by {farthest.logit_difference:.2g} of the largest"
        problems = _problems(answers)
        detail += "".join(f"; {problem}" for problem in problems)
        difference, agreement = farthest.logit_difference, worst.greedy_agreement
        exact = [answer.fp32_difference for answer in answers if answer.fp32_difference is not None]
        in_fp32 = worst_of(exact, key=float) if exact else 0.0
        detail += f", in fp32 arithmetic by {in_fp32:.2g}" if exact else ""
        if difference <= limit and not in_fp32 <= self.max_error_fp32:
            return self.found(False, detail, measured=in_fp32, limit=self.max_error_fp32)
        if difference <= limit and not agreement >= self.min_agreement:
            return self.found(False, detail, measured=agreement, limit=self.min_agreement)
        return self.found(difference <= limit, detail, measured=difference, limit=limit, problems=problems)


def _problems(answers: list[Generation]) -> list[str]:
    """Return errors of generate with right scores: another prompt, another token, going on after the end token."""
    problems = []
    if other := [answer for answer in answers if answer.prompt_as_trained is False]:
        problems.append(f"the tokens of the prompt {other[0].prompt[-40:]!r} are not those of its row in training")
    if tokens := sum(answer.not_largest for answer in answers):
        problems.append(f"{tokens} tokens are not the largest of the scores that they were chosen by")
    if changed := sum(answer.scores_changed for answer in answers):
        problems.append(f"{changed} tokens are chosen by other scores than the model's logits")
    if not all(answer.stops for answer in answers):
        problems.append("generation goes on after the end token")
    return problems
