"""The numbers and texts that a model is judged by: evaluation, perplexity, generation."""

import math

from tunecheck.core.check import Check, NumericCheck, relative_error, some, worst_of
from tunecheck.core.evidence import Evaluation, EvaluationAudit, Generation, Setup
from tunecheck.core.finding import Finding
from tunecheck.core.trace import Trace


class EvaluationOracle(NumericCheck):
    """Exactly the configured evaluations run, and their losses equal an independent float64 computation.

    Each loss is compared with the mean over its own logits. The last one is also compared with the rows computed
    without masks.
    """

    needs = frozenset({"suite_rows"})
    meaning = (
        "Padding counts in the mean. Batch means are averaged. Labels are wrong. Dropout is active. These mistakes "
        "also give perplexities above the vocabulary size."
    )
    remedy = "Sum the negative log-likelihoods, and divide once by the supervised tokens, at the end."

    max_error_fp32: float = 1e-4  # 5e-6 measured
    max_error_16bit: float = 1e-2
    max_error_own_logits: float = 1e-4
    """Error against the float64 mean over the evaluation's own logits, which contains no rounding of the model. 2e-7
    measured in fp32, bf16 and fp16."""
    min_logit_digits: int = 20
    """Binary digits of the logits in fp32, whose numbers have 24. A mean loss averages 16-bit rounding away, logits do
    not."""

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
        lines += [f"evaluated, but not configured: {some(extra)}"] if extra else []
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
            lines.append("with one batch, or equal token counts per batch, a mean of batch means is undetectable")
        return self.at_most(worst, limit, "; ".join(lines), problems=problems)


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
    """Evaluation runs in eval mode without a graph, and repeats bit for bit.

    It changes no mode, weight or memory. It evaluates the current weights of the trained model, not a stand-in.
    """

    needs = frozenset({"suite_rows"})
    meaning = (
        "Dropout is active in evaluation. Activations are kept. Other weights than the trained ones are evaluated. The "
        "model stays in eval mode for the rest of the training."
    )
    remedy = "Wrap the evaluation in model.eval() and torch.no_grad(), and restore the previous mode afterwards."

    def judge(self, trace: Trace) -> Finding:
        problems = [
            f"{seen.split} before step {seen.step}: the current model computes other logits for the first batch"
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
                problems.append(f"{audit.split}: {audit.kept_tensors} tensors of an evaluation are alive after its end")
            if audit.weights_changed:
                problems.append(f"{audit.split}: it changed the trained weights")
            if not audit.repeats:
                problems.append(f"{audit.split}: a second evaluation of its first batch gives other logits")
        return self.unless(problems, "eval mode, no graph, repeatable, nothing kept or changed")


MOST_DIGITS = 20.0
"""Nats up to which a perplexity is printed in full."""


class PerplexityBelowVocabulary(Check):
    """Every evaluation has a perplexity below the vocabulary size.

    Unfamiliar rows, such as emoji or codes, may start above it. Their perplexity must not rise from there.
    """

    needs = frozenset({"suite_rows"})
    meaning = (
        "The evaluation is broken: labels shifted twice, padding counted, or a sum instead of a mean. The weights were "
        "never loaded. The training diverged. A uniform guess would do better."
    )
    remedy = "Fix evaluation_oracle and base_matches_file first if either failed. Otherwise lower the learning rate."

    max_share: float = 1.0
    """Share of ln V, the loss of a uniform guess."""
    max_rise: float = 1.1
    """Loss over the first loss of unfamiliar rows, if that is above a uniform guess. It falls in training, and held-out
    rows of another kind may rise a little."""
    max_share_random: float = 1.05
    """The same share for random weights. Their logits scatter, so that the loss exceeds a uniform guess by half the
    logits' variance, plus sampling noise."""
    max_variance_share_random: float = 0.75
    """Share of the logits' variance, width x initializer_range^2, that a wide model with random weights may add. Half
    is expected: 0.82 nats for LLaMA-7B (0.78 measured with two of its layers), while 5 % of ln V are 0.52."""

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
        return self.at_most(worst.loss, limit, f"{detail}, {vocabulary:,} tokens in the vocabulary")


class GenerationIsGreedy(NumericCheck):
    """Greedily generated tokens and their logits equal those of one plain forward pass.

    Each token has the largest score, and the end token ends the answer. The prompt is tokenised as in the training
    rows.
    """

    needs = frozenset({"generate"})
    meaning = (
        "Generation uses wrong position ids, cache, padding side or mask, or a leftover penalty in its settings. The "
        "model is right, but its answers are not."
    )
    remedy = "Pad on the left for batched generation. Pass the attention mask. Compare with use_cache=False."

    min_agreement: float = 0.9
    """Share of equal tokens. In 16 bit, the cached and the plain forward pass may resolve near ties differently."""

    max_error_fp32: float = 1e-3
    """Error of the logits: a cached and a plain forward pass multiply in different orders. In 16-bit runs it also
    applies to fp32 logits."""
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
        return self.at_most(difference, limit, detail, problems=problems)


def _problems(answers: list[Generation]) -> list[str]:
    """Return errors of generate with right scores: another prompt, another token, going on after the end token."""
    problems = []
    if other := [answer for answer in answers if answer.prompt_as_trained is False]:
        problems.append(f"the tokens of the prompt {other[0].prompt[-40:]!r} differ from those of its training row")
    if tokens := sum(answer.not_largest for answer in answers):
        problems.append(f"{tokens} tokens do not have the largest score")
    if changed := sum(answer.scores_changed for answer in answers):
        problems.append(f"{changed} tokens are chosen by scores that are not the model's logits")
    if not all(answer.stops for answer in answers):
        problems.append("generation goes on after the end token")
    return problems
