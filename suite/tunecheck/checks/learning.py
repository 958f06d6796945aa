"""What the training achieves: losses that fall, text that stays language, an answer that is learned."""

import math
from itertools import pairwise
from statistics import median
from typing import ClassVar

from tunecheck.core.check import Check, binary_digits, holding, recorded, required, worst_of
from tunecheck.core.errors import MissingEvidence, NotApplicable
from tunecheck.core.evidence import Evaluation, Generation, ScoresGiven, Setup
from tunecheck.core.finding import Finding
from tunecheck.core.premises import Premise
from tunecheck.core.trace import Trace
from tunecheck.core.trend import trend


class LossFalls(Check):
    """The eval-mode loss on a fixed probe batch falls by at least the configured share."""

    needs = frozenset({"named", Premise.PRETRAINED})
    split: ClassVar[str] = "probe"
    meaning = "The adapters do not learn: there is no gradient, the learning rate is too small, or labels are wrong."
    remedy = "Fix other failed checks first. If there are none, raise the learning rate or the number of steps."

    min_fall: float
    """Smallest fall that passes, as a share of the first loss."""

    def judge(self, trace: Trace) -> Finding:
        seen = [evaluation for evaluation in trace.all(Evaluation) if evaluation.split == self.split]
        if len(seen) < 2 or (seen[0].step, seen[-1].step) != (0, trace.run.training.max_steps):
            raise MissingEvidence(f"the {self.split} split was not evaluated at start and end")
        first, last = seen[0].loss, seen[-1].loss
        before, after = (math.exp(min(loss, 700.0)) for loss in (first, last))
        detail = f"{self.split} perplexity {before:.2f} -> {after:.2f} ({first:.4f} -> {last:.4f} nats)"
        fall = 1 - last / first if first and math.isfinite(first) else -math.inf
        return self.found(fall >= self.min_fall, detail, measured=fall, limit=self.min_fall)


COMES_BACK = "a loss may be bounded, or be compared with a copy that is renewed on purpose"
MAY_RISE = "a task may get harder, as with an adversary, a curriculum, or a term whose weight grows"
NOTHING_LEFT = "The loss mask is 0 everywhere, a batch holds a single pair, or a cross entropy has a single class."
OVERSHOOTS = "The learning rate is too high for these weights, and each step overshoots."


class LossMoves(Check):
    """The loss changes if learning rates and gradients are large enough to change it. It does not return to its first
    value, nor rise to a multiple of it.

    Each step should lower the loss by rate times gradient norm, or by rate times norm squared if that is less. A zero
    loss with a gradient is not judged: a policy on its own samples has one. No later step repeats the first loss to the
    last digit. Some steps may have no gradient, as equally good answers teach nothing. Not all may.
    """

    needs = frozenset({"user_code", "several_steps"})
    meaning = f"""The loss compares the model with itself instead of a frozen copy. DPO with the policy as its reference
    stays at ln 2. Or the loss does not depend on the trained weights: its weight (beta) is 0, or all samples have equal
    rewards. {NOTHING_LEFT} {OVERSHOOTS}"""
    remedy = """Create the reference by a deep copy before the first step. After some steps, print both sides of the
    comparison, and the rewards of some samples."""

    min_spread: float = 3e-7
    """Spread over the largest loss. fp32 rounding alone gives half of it."""
    min_expected: float = 1e-3
    """Expected fall over all steps, relative to the loss, needed for a verdict. DPO at rates of 1e-7 barely moves."""
    min_expected_fp32: float = 1e-4
    """The same without 16-bit passes: more than a hundred times the smallest spread that counts as movement."""
    min_steps: int = 5
    """Applied steps needed for a verdict. Equal losses in fewer may be chance, or a warm-up from 0."""
    max_coarse_digits: int = 11
    """Binary digits of a 16-bit loss, which rounding may keep constant."""
    max_rounding: float = 1e-6
    """Loss and gradient norm of a model compared with itself: eight times fp32's step at 1, where terms cancel."""
    max_rise: float = 2.0
    """Median loss of the last half of the steps over that of the first third. In 164 recorded healthy trainings it is
    2.2 once, with a loss near 0, and else at most 1.4."""
    min_risen: float = 0.5
    """The same as a difference: losses near 0 vary by more than their size."""

    def judge(self, trace: Trace) -> Finding:
        steps = [step for step in trace.steps if step.applied]
        losses = [step.loss for step in steps]
        if len(steps) < self.min_steps or not all(map(math.isfinite, losses)):
            raise NotApplicable(f"{len(steps)} steps were applied, or one of their losses is not finite")
        largest = max(map(abs, losses))
        spread = (max(losses) - min(losses)) / largest if largest else 0.0
        detail = f"the losses of {len(steps)} steps differ by {spread:.2g} of {largest:.6g}"
        if spread <= self.min_spread and not any(step.gradient_norm for step in steps):
            why = [told for seen in trace.records(ScoresGiven) for told in seen.nothing]
            causes, meant = [NOTHING_LEFT] * bool(why), trace.why({Premise.GRADIENT_DUE})
            detail = "; ".join([f"{detail}, and every gradient is 0: nothing is learned", *why])
            return self.found(False, detail, measured=spread, limit=self.min_spread, meant=meant, causes=causes)
        required(largest, "the loss is 0 in every step")
        first, half = median(losses[: len(losses) // 3]), losses[len(losses) // 2 :]
        last = median(half)
        if first > 0 and min(half) > first and last > max(self.max_rise * first, first + self.min_risen):
            detail = f"the loss rises from {first:.4g} to {last:.4g}, medians of the first {len(losses) // 3} steps and"
            detail += f" the last {len(half)}"
            return self.at_most(last / first, self.max_rise, detail, meant=MAY_RISE, causes=[OVERSHOOTS])
        if all(largest <= self.max_rounding and step.gradient_norm <= self.max_rounding for step in steps):
            norm = max(step.gradient_norm for step in steps)
            detail = f"the losses of {len(steps)} steps are at most {largest:.2g}, and their gradients {norm:.2g}"
            meant = "a script may scale its loss down"
            return self.found(False, f"{detail}: rounding alone gives so much", meant=meant)
        later = steps[next((at for at, step in enumerate(steps, start=1) if step.learning_rate > 0), len(steps)) :]
        again = [step.step for step in later if abs(step.loss - losses[0]) <= self.min_spread * abs(losses[0])]
        fine_digits = max(map(binary_digits, losses)) > self.max_coarse_digits
        if losses[0] and fine_digits and 0 < len(again) < len(steps) / 2:
            detail = f"the loss of step {steps[0].step}, {losses[0]:.7g}, recurs to the last digit in steps {again}"
            return self.found(False, detail, measured=len(again), limit=0, meant=COMES_BACK)
        if spread <= self.min_spread:
            norms = [(step.learning_rate, step.gradient_norm) for step in steps[:-1]]
            promised = sum(rate * min(norm, norm * norm) for rate, norm in norms) / largest
            fine = any(setup.exact for setup in trace.records(Setup)) and not trace.trains_16bit_weights
            if not promised >= (self.min_expected_fp32 if fine else self.min_expected):  # nor where a rate is not known
                raise NotApplicable(f"{detail}, and their gradients predict no larger change")
            required(fine_digits, f"{detail}; 16 bit may round the change away")
            detail += f", while rates and gradients predict a fall of {promised:.2g}"
        return self.found(spread > self.min_spread, detail, measured=spread, limit=self.min_spread)


FEWEST_EVALUATIONS, FEWEST_STEPS, BLOCKS = 4, 50, 10


class LossKeepsFalling(Check):
    """The loss ends below its start and does not rise again in between.

    The check uses the evaluations of the fixed probe batch, which have no sampling noise, if there are at least four.
    Else it uses the training loss: medians of ten blocks of steps, and a trend through all of them.
    """

    needs = frozenset({"long_run", "named", Premise.PRETRAINED})
    meaning = "The training diverges late: the learning rate is too high, the schedule restarts, or batches are bad."
    remedy = "Compare the loss curve with the learning rate curve. Lower the rate, or clip the gradients."

    max_rise: float = 0.02
    """Rise of an evaluation over the smallest one before it, as a share."""
    max_late_rise: float = 0.15
    """Rise of the last block's median over the smallest one. Without it, 8 % of simulated rising runs pass."""
    max_p: float = 1e-3
    """Probability that a flat training loss looks like a falling one (Mann-Kendall)."""

    def judge(self, trace: Trace) -> Finding:
        probes = [evaluation for evaluation in trace.all(Evaluation) if evaluation.split == "probe"]
        if len(probes) >= FEWEST_EVALUATIONS:
            losses = [evaluation.loss for evaluation in probes]
            ends_above = [] if losses[-1] < losses[0] else [losses[-1]]
            before = [(loss, min(losses[:at])) for at, loss in enumerate(losses) if at]
            worst = worst_of([loss / lowest - 1 if lowest else loss for loss, lowest in before], key=float)
            course = " -> ".join(f"{loss:.3f}" for loss in losses)
            return self.at_most(worst, self.max_rise, f"probe batch {course}", problems=ends_above)
        losses = [step.loss for step in trace.steps if step.applied]
        recorded(len(losses) >= FEWEST_STEPS, f"{len(losses)} steps, {FEWEST_STEPS} are needed")
        if not all(map(math.isfinite, losses)):
            return self.found(False, "a training loss is not finite", measured=math.nan, limit=self.max_late_rise)
        edges = [len(losses) * block // BLOCKS for block in range(BLOCKS + 1)]
        blocks = [median(losses[start:stop]) for start, stop in pairwise(edges)]
        falling = trend(range(len(losses)), [-loss for loss in losses], confidence=0.95).p_rising
        rise = blocks[-1] / min(blocks) - 1 if min(blocks) > 0 else math.nan
        not_fallen = [not blocks[-1] < blocks[0], not falling <= self.max_p]
        course = " -> ".join(f"{block:.3f}" for block in blocks)
        detail = f"median training loss of ten blocks {course}, p of no fall {falling:.2g}"
        within = rise <= self.max_late_rise
        return self.found(within, detail, measured=rise, limit=self.max_late_rise, problems=[*filter(None, not_fallen)])


class HeldoutImproves(LossFalls):
    """The loss on held-out rows about other facts falls by at least the configured share."""

    split = "heldout"
    meaning = "The model memorises its training rows, or the evaluation is wrong."
    remedy = "Train fewer epochs, or lower the rate or the rank. Fix evaluation_oracle first if it failed."

    min_fall: float = 0.0
    """Smallest fall that passes, as a share of the first loss."""


class TextIsLanguage(Check):
    """The model assigns its own greedy continuations a high probability.

    They do not repeat one token, and they are readable. The check needs no dictionary: in noise, no next token is
    likely.
    """

    needs = frozenset({"generate", Premise.PRETRAINED})
    meaning = "The weights were never loaded, the tokenizer is another model's, or training destroyed the knowledge."
    remedy = "Read the texts in report.html. Fix base_matches_file and first_loss_below_uniform first if either failed."

    max_share: float = 0.4
    """Mean negative log-probability of the generated tokens over ln V. SmolLM2-135M has 0.05 to 0.12, its architecture
    with random weights 0.9."""
    max_repeated: float = 0.6
    """Share of the most frequent token."""
    min_readable: float = 0.95
    """Share of readable characters."""

    def judge(self, trace: Trace) -> Finding:
        texts, limit = trace.all(Generation), self.max_share * math.log(trace.run.architecture.vocab_size)
        worst = worst_of(texts, key=lambda text: -text.mean_logprob)
        problems = []
        for text in texts:
            often, readable = text.most_frequent_share, text.readable_share
            wrong = {
                f"{-text.mean_logprob:.2f} nats per generated token": not -text.mean_logprob <= limit,
                # a short answer may be one word
                f"{often:.0%} of the tokens are the same token": text.tokens >= 8 and not often <= self.max_repeated,
                f"only {readable:.0%} of the characters are readable": not readable >= self.min_readable,
            }
            problems += [f"{told} ({text.when}: {text.text[:60]!r})" for told in holding(wrong)]
        detail = "; ".join(problems) or f"{len(texts)} texts; the least sure ({worst.when}): {worst.text[:60]!r}"
        return self.at_most(-worst.mean_logprob, limit, detail, problems=problems)


class CanaryLearned(Check):
    """Greedy decoding returns an invented answer exactly, end token included, which the model did not know before."""

    needs = frozenset({"canary", Premise.PRETRAINED})
    meaning = "Training does not reach generation: another template, no supervised end token, or unapplied adapters."
    remedy = "Compare both texts. Fix tokens_match_template and adapters_applied first if either failed."

    def judge(self, trace: Trace) -> Finding:
        answers = {generation.when: generation for generation in trace.all(Generation) if generation.expected}
        recorded(answers.keys() >= {"start", "end"}, "the canary was not generated before and after training")
        before, after = answers["start"], answers["end"]
        known = before.text.strip() == before.expected
        detail = f"before {before.text[:80]!r}, after {after.text[:80]!r}"
        detail += "" if after.ended else ", without an end token"
        detail += " (known before training: choose another canary)" if known else ""
        told, wanted = after.text.strip(), after.expected
        problems = holding({"no end": not after.ended, "known": known})
        return self.found(told == wanted, detail, measured=told, limit=wanted, problems=problems)
