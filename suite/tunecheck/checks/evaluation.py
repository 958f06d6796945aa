"""The numbers and texts that a model is judged by: evaluation, perplexity, generation."""

import math

from tunecheck.core.check import Check, NumericCheck, holding, relative_error, some, worst_of
from tunecheck.core.evidence import Evaluation, EvaluationAudit, Generation, Setup, Weights
from tunecheck.core.finding import Finding
from tunecheck.core.trace import Trace


class EvaluationOracle(NumericCheck):
    """Exactly the configured evaluations run, and their losses equal an independent float64 computation.

    Each loss is compared with the mean over its own logits. The last evaluation is also compared with its rows computed
    one by one, without masks.
    """

    needs = frozenset({"suite_rows"})
    meaning = """Padding counts in the mean. Batch means are averaged. Labels are wrong. Dropout is active. These
    mistakes also give perplexities above the vocabulary size."""
    remedy = "Sum the negative log-likelihoods, and divide once by the supervised tokens, at the end."

    max_error_fp32: float = 1e-4  # 5e-6 measured
    max_error_16bit: float = 1e-2
    max_error_own_logits: float = 1e-4
    """Error against the float64 mean over the evaluation's own logits: 2e-7 in fp32, bf16 and fp16."""
    min_logit_digits: int = 20
    """Significant binary digits of fp32 logits, which have 24. The mean loss alone would hide rounding to 16 bit."""

    def judge(self, trace: Trace) -> Finding:
        audits, problems, lines, errors = trace.all(EvaluationAudit), list[object](), [], []
        for audit in audits:
            reported = f"{audit.split}: reported {audit.reported_loss:.6f} over {audit.reported_tokens} tokens"
            lines.append(f"{reported}, oracle {audit.oracle_loss:.6f} over {audit.oracle_tokens}")
            same_tokens = audit.reported_tokens == audit.oracle_tokens  # else it is the mean of others
            errors.append(relative_error(audit.reported_loss, audit.oracle_loss) if same_tokens else math.inf)
            if trace.one(Setup).exact and audit.logit_digits < self.min_logit_digits:
                problems.append(audit)
                lines[-1] += f", from logits of {audit.logit_digits} binary digits"
        seen = {(held.step, held.split) for held in trace.all(Evaluation)}
        steps = (0, *trace.run.evaluated_at, trace.run.training.max_steps)
        due = {(at, split) for at in steps for split in trace.run.evaluated}
        for words, wrong in (("never evaluated", due - seen), ("evaluated, but not configured", seen - due)):
            if wrong:
                lines.append(f"{words}: {some([f'{split} before step {at}' for at, split in sorted(wrong)])}")
                problems += wrong
        finer = []
        own = [(relative_error(e.loss, e.logits_loss), e) for e in trace.all(Evaluation) if e.logits_loss is not None]
        if own:
            error, e = worst_of(own, key=lambda pair: pair[0])
            reported = f"{e.split} before step {e.step}: reported {e.loss:.6f}"
            lines.append(f"{reported}, {e.logits_loss:.6f} in float64 from the same logits")
            finer.append((error, self.max_error_own_logits))
        if all(len(set(audit.batch_tokens)) == 1 for audit in audits):
            lines.append("with one batch, or equal token counts per batch, a mean of batch means is undetectable")
        return self.at_most(worst_of(errors, key=float), self.limit(trace), "; ".join(lines), *finer, problems=problems)


class EvaluationMode(Check):
    """Evaluation runs in eval mode without a graph, and repeats bit for bit.

    It leaves modes, weights and memory unchanged, and evaluates the current weights of the trained model.
    """

    needs = frozenset({"suite_rows"})
    meaning = """Dropout is active in evaluation. Activations are kept. Other weights than the trained ones are
    evaluated. The model stays in eval mode for the rest of the training."""
    remedy = "Wrap the evaluation in model.eval() and torch.no_grad(), and restore the previous mode afterwards."

    def judge(self, trace: Trace) -> Finding:
        stands_in = [seen for seen in trace.all(Evaluation) if seen.model_repeats is False]
        words = "the current model computes other logits for the first batch"
        problems = [f"{seen.split} before step {seen.step}: {words}" for seen in stands_in]
        for audit in trace.all(EvaluationAudit):
            wrong = {
                f"{audit.training_modules_during} modules were in train mode": audit.training_modules_during,
                "gradients were enabled": audit.built_graph,
                "the modules' modes were not restored": not audit.mode_restored,
                f"{audit.kept_tensors} tensors of an evaluation are alive after its end": audit.kept_tensors > 0,
                "it changed the trained weights": audit.weights_changed,
                "a second evaluation of its first batch gives other logits": not audit.repeats,
            }
            problems += [f"{audit.split}: {sentence}" for sentence in holding(wrong)]
        return self.unless(problems, "eval mode, no graph, repeatable, nothing kept or changed")


class PerplexityBelowVocabulary(Check):
    """Every evaluation has a perplexity below the vocabulary size.

    Unfamiliar rows, such as emoji or codes, may start above it. Their perplexity must not rise from there.
    """

    needs = frozenset({"suite_rows"})
    meaning = """The evaluation is broken: labels shifted twice, padding counted, or a sum instead of a mean. The
    weights were never loaded. The training diverged. A uniform guess would do better."""
    remedy = "Fix evaluation_oracle and base_matches_file first if either failed. Otherwise lower the learning rate."

    max_share: float = 1.0
    """Share of ln V, the loss of a uniform guess."""
    max_rise: float = 1.1
    """Loss over the first loss of unfamiliar rows, if that is above a uniform guess. Other held-out rows may rise."""
    max_share_random: float = 1.05
    """The same share for random weights. Their logits scatter, so that the loss exceeds a uniform guess by half the
    logits' variance, plus sampling noise."""
    max_variance_share_random: float = 0.75
    """Share of the logits' variance, width x initializer_range^2, that a wide model with random weights may add. Half
    is expected: 0.82 nats for LLaMA-7B (0.78 measured with two of its layers), while 5 % of ln V are 0.52."""

    def judge(self, trace: Trace) -> Finding:
        architecture = trace.run.architecture
        uniform = math.log(architecture.vocab_size)
        limit = uniform * self.max_share
        if not trace.one(Weights).pretrained:
            variance = architecture.hidden_size * architecture.initializer_range**2
            limit = max(uniform * self.max_share_random, uniform + self.max_variance_share_random * variance)
        evaluations = trace.all(Evaluation)
        starts = {seen.split: seen.loss for seen in evaluations if seen.step == 0 and seen.unfamiliar(limit)}
        limits = {seen.split: max(limit, self.max_rise * starts.get(seen.split, 0.0)) for seen in evaluations}
        worst = worst_of(evaluations, key=lambda seen: seen.loss / limits[seen.split])
        limit = limits[worst.split]
        perplexity = f"{math.exp(worst.loss):,.2f}" if worst.loss < 20 else f"e^{worst.loss:.3g}"
        detail = f"largest of {len(evaluations)}: {worst.split} before step {worst.step}, perplexity {perplexity}"
        return self.at_most(worst.loss, limit, f"{detail}, {architecture.vocab_size:,} tokens in the vocabulary")


class GenerationIsGreedy(NumericCheck):
    """Greedily generated tokens and their logits equal those of one plain forward pass.

    Each token has the largest score, and the end token ends the answer. The prompt is tokenised as in the training
    rows.
    """

    needs = frozenset({"generate"})
    meaning = "Generation uses wrong position ids, cache, padding side or mask, or a leftover penalty."
    remedy = "Pad on the left for batched generation. Pass the attention mask. Compare with use_cache=False."

    min_agreement: float = 0.9
    """Share of equal tokens. In 16 bit, the cached and the plain forward pass may resolve near ties differently."""
    max_error_fp32: float = 1e-3
    """Error of the logits: cached passes multiply in another order. In 16-bit runs it also applies to fp32 logits."""
    max_error_16bit: float = 0.1

    def judge(self, trace: Trace) -> Finding:
        limit, answers = self.limit(trace), trace.all(Generation)
        worst = worst_of(answers, key=lambda answer: -answer.greedy_agreement)
        farthest = worst_of(answers, key=lambda answer: answer.logit_difference)
        detail = f"{worst.greedy_agreement:.0%} of the tokens of {worst.text[:60]!r} ({worst.when}); "
        detail += f"logits off by {farthest.logit_difference:.2g} of the largest"
        other = [answer.prompt[-40:] for answer in answers if answer.prompt_as_trained is False]
        tokens, changed = (sum(getattr(a, name) for a in answers) for name in ("not_largest", "scores_changed"))
        wrong = {
            f"the tokens of the prompt {''.join(other[:1])!r} differ from those of its training row": other,
            f"{tokens} tokens do not have the largest score": tokens,
            f"{changed} tokens are chosen by scores that are not the model's logits": changed,
            "generation goes on after the end token": not all(answer.stops for answer in answers),
        }
        problems = holding(wrong)
        detail += "".join(f"; {problem}" for problem in problems)
        difference, agreement = farthest.logit_difference, worst.greedy_agreement
        exact = [answer.fp32_difference for answer in answers if answer.fp32_difference is not None]
        finer = [(worst_of(exact, key=float), self.max_error_fp32)] if exact else []
        detail += f", in fp32 arithmetic by {finer[0][0]:.2g}" if exact else ""
        if all(value <= most for value, most in [(difference, limit), *finer]) and not agreement >= self.min_agreement:
            return self.found(False, detail, measured=agreement, limit=self.min_agreement)
        return self.at_most(difference, limit, detail, *finer, problems=problems)
