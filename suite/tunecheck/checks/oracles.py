"""Loss and gradient of a step, held against an oracle: the same rows in passes and arithmetic of other code."""

import math
from collections.abc import Sequence
from operator import mul

from tunecheck.core.check import (
    NumericCheck,
    binary_digits,
    or_infinite,
    recorded,
    relative_error,
    required,
    some,
    unwitnessed,
    worst_of,
)
from tunecheck.core.errors import NotApplicable
from tunecheck.core.evidence import Gradients, Oracle, OwnLoss, OwnRowsGradient, Setup, Step, Window
from tunecheck.core.finding import Finding
from tunecheck.core.premises import ROWS_KNOWN, UNCHANGED, Premise
from tunecheck.core.trace import WITH_FIRST_LABELS, Trace

NORMALISED = "The loss is divided twice, or not at all, by accumulation steps, processes or tokens."
ROUNDED = "The loss is computed or summed in 16 bit."
AVERAGED = "Micro-batch means are averaged although token counts differ."
INCOMPLETE = "The first or last window of an epoch has fewer micro-batches, but is divided like a full one."
COUNTS_LESS = "an incomplete window may count less on purpose"


class LossOracle(NumericCheck):
    """The reported loss of a step equals an independent mean over its supervised tokens."""

    needs = ROWS_KNOWN | {
        *("oracle", Premise.GRADIENT_SUMMED, Premise.EVERY_ROW_SEEN, Premise.LOSS_DECLARED),
        *(Premise.TOKEN_MEAN_LOSS, Premise.LOSS_UNSCALED, Premise.LOSS_REPEATABLE),
    }
    premises_to_fail = frozenset({Premise.WEIGHTS_STILL})
    meaning = f"""Labels are shifted twice or not at all. The mean counts padding. {AVERAGED} {NORMALISED} {INCOMPLETE}
    Declared label smoothing is missing. A wrong mask or wrong positions change the model's output. {ROUNDED}"""
    remedy = """Compare the two losses. A ratio near the accumulation steps points to the normalisation, any other value
    to the labels. Fix mask_and_positions first if it failed."""

    max_error_fp32: float = 1e-4  # 1e-7 measured
    max_error_16bit: float = 1e-2
    max_error_own_logits: float = 1e-4
    """Error against the float64 loss of the trainer's own logits, which contains no rounding of the model. A cross
    entropy in fp32 gives 1e-7 in every precision; one in bf16 is off by 1e-3."""
    min_digits: int = 16
    """Binary digits of the loss with the most digits. fp32 has 24, and 15 or fewer in every step come by chance once in
    500^steps. A sum of bf16 micro-batch losses has 8 to 11 digits, of fp16 ones 11 to 14."""
    min_steps_of_digits: int = 3
    """Steps needed to judge the digits."""

    def judge(self, trace: Trace) -> Finding:
        steps = {step.step: step.loss for step in trace.steps}
        if trace.run.smoothing:
            return self._smoothed(trace, steps)
        oracles = [oracle for oracle in _nearest(trace) if oracle.step in steps]
        recorded(oracles, "no oracle step was trained")
        own = {loss.step: loss for loss in trace.records(OwnLoss) if loss.step in steps}
        if foreign := [f"step {loss.step}: {loss.foreign_rows}" for loss in own.values() if loss.foreign_rows]:
            detail = f"the model received rows with tokens of another step: {some(foreign)}"
            return self.at_most(len(foreign), 0, detail)
        exact = {step: seen.loss for step, seen in own.items() if seen.loss is not None}
        replayed = {o.step: o.replayed_loss for o in oracles if o.replayed_loss is not None}
        compared = [("oracle", self.limit(trace), {o.step: o.loss for o in oracles})]
        compared += [("in float64 from the same logits", self.max_error_own_logits, exact)] if exact else []

        def fits(step: int, part: float) -> bool:
            told = [(losses[step], most) for _, most, losses in compared if step in losses]
            return bool(told) and all(relative_error(steps[step], part * loss) <= most for loss, most in told)

        parts = {step: part for step, part in _incomplete(trace).items() if fits(step, part)}
        compared = [(n, most, {s: loss * parts.get(s, 1.0) for s, loss in told.items()}) for n, most, told in compared]
        findings = []
        errors = [(relative_error(steps[at], told), most) for _, most, all_ in compared for at, told in all_.items()]
        wrong, confirmed = sum(not error <= most for error, most in errors), _oracle_confirmed(trace, self.limit(trace))
        meant = unwitnessed(wrong, len(errors), confirmed=confirmed)
        for name, limit, wanted in compared:
            told = {**steps, **replayed} if name == "oracle" else steps
            step = worst_of(wanted, key=lambda step: relative_error(told[step], wanted[step]))
            value, word = told[step], "again without dropout" if told is not steps and step in replayed else "reported"
            # a loop that writes to the gradients may divide the sum over its tokens there
            sums = [] if trace.holds(Premise.GRADIENTS_UNEDITED) else trace.records(Window)
            tokens = next((window.supervised_tokens for window in sums if window.step == step), 0)
            if tokens and not relative_error(value, wanted[step]) <= limit:
                value, word = value / tokens, f"reported as a sum over {tokens} tokens, with a mean of"
            error = relative_error(value, wanted[step])
            detail = f"step {step}: {word} {value:.6f}, {name} {wanted[step]:.6f} ({oracles[0].split})"
            ratio = "" if error <= limit else named_ratio(trace, step, value, wanted[step])
            meant = "" if ratio else meant  # a number of this training's confirms it
            causes = [NORMALISED] * bool(ratio)
            if abs(error - (share := trace.first_labels_counted(step))) <= limit < share:
                error, ratio = abs(error - share), WITH_FIRST_LABELS
            findings.append(self.at_most(error, limit, detail + ratio, meant=meant, causes=causes))
        digits = max(map(binary_digits, steps.values()))
        if len(steps) >= self.min_steps_of_digits and digits < self.min_digits:
            detail = f"none of {len(steps)} reported losses has more than {digits} binary digits"
            findings.append(self.found(False, detail, measured=digits, limit=self.min_digits, causes=[ROUNDED]))
        if (found := next((finding for finding in findings if not finding.passed), findings[0])).passed and parts:
            step, part = next(iter(parts.items()))
            detail = f"step {step} counts {part:.2f} of a full one, as its window has {part:.2f} of the micro-batches"
            return self.found(False, detail, measured=part, limit=1.0, meant=COUNTS_LESS, causes=[INCOMPLETE])
        return found

    def _smoothed(self, trace: Trace, steps: dict[int, float]) -> Finding:
        """Judge that the loss is not the plain one; how a smoothed one is averaged depends on the library's version."""
        declared, limit = f"label_smoothing_factor = {trace.run.smoothing:g}", self.max_error_own_logits
        plain = {seen.step: seen.loss for seen in trace.records(OwnLoss) if seen.loss is not None}
        errors = {step: relative_error(steps[step], loss) for step, loss in plain.items() if step in steps}
        if errors and max(errors.values()) <= limit:
            step = next(iter(errors))
            detail = f"{declared} is declared, but the loss is not smoothed: step {step}: {steps[step]:.6f}"
            return self.found(False, detail, measured=errors[step], limit=f"more than {limit:g}")
        raise NotApplicable(f"the loss is smoothed: {declared}")


def _incomplete(trace: Trace) -> dict[int, float]:
    """Return the loop's steps with fewer micro-batches than others, each with its share of the most."""
    windows = [] if trace.holds(Premise.STEP_DECLARED) else trace.records(Window)
    counts = {window.step: len(window.digests) for window in windows}
    most = max(counts.values(), default=0)
    return {step: count / most for step, count in counts.items() if 0 < count < most}


def _nearest(trace: Trace) -> list[Oracle]:
    """Return each step's oracle: of the means that the training may take, the one that its gradient is nearest to."""
    declared, found = trace.holds(Premise.MEAN_DECLARED), dict[int, Oracle]()
    for oracle in trace.all(Oracle):
        other = found.get(oracle.step, oracle)
        if not (declared and oracle.of_means):
            found[oracle.step] = min(other, oracle, key=lambda each: or_infinite(each.gradient_error * each.norm))
    return list(found.values())


def _oracle_confirmed(trace: Trace, limit: float) -> bool:
    """Return whether the oracle's forward pass is the model's: by its class, or by the logits of the training's own."""
    own = {seen.step: seen.loss for seen in trace.records(OwnLoss) if seen.loss is not None}
    alike = (relative_error(seen.loss, own[seen.step]) <= limit for seen in trace.records(Oracle) if seen.step in own)
    return trace.knows_model or any(alike)


def named_ratio(trace: Trace, step: int, value: float, wanted: float) -> str:
    """Return what the ratio of a wrong value to the right one is, as a clause: "; 4.00 times, as the window has ..."

    "" where it is no number of this step's, or its inverse.
    """
    tokens = next((seen.micro_batch_tokens for seen in trace.records(Gradients) if seen.step == step), ())
    counts = {
        "micro-batches": len(tokens),
        "processes": trace.run.processes,
        "micro-batches of all processes": len(tokens) * trace.run.processes,
        "supervised tokens": next((seen.supervised_tokens for seen in trace.records(Window) if seen.step == step), 0),
    }
    ratio = value / wanted if wanted else math.nan
    for name, count in counts.items():
        for factor in (count, 1 / count) if count > 1 else ():
            if abs(ratio / factor - 1) <= RATIO_ROUNDING:
                times = f"{ratio:.2f} times" if factor > 1 else f"1/{1 / ratio:.2f} of it"
                return f": {times}, and the step has {count} {name}"
    return ""


RATIO_ROUNDING = 0.01
"""Relative difference of a ratio from a whole number which it is named by, and of gradients but for their ratio."""
MEANS_AVERAGED = "micro-batches may have equal weight on purpose, as with several tasks or sources"
ROUNDED_LAYERS = 6
"""Layers of a model whose 16-bit gradient is held to the plain limit."""


class WindowGradient(NumericCheck):
    """A step's gradient equals one that other code computes from the same rows."""

    max_error_fp32: float = 1e-4  # 1e-6 measured; a softmax in bf16 is off by 3e-4
    max_error_16bit: float = 5e-2
    """Error in bf16 or fp16, for up to six layers. Layers round independently, so that the limit grows by sqrt(L / 6):
    to 0.11 for SmolLM2-135M, whose healthy bf16 trainings reach 0.055 on a CPU with AMX."""
    max_error_autocast: float = 0.2
    """Error for a base trained under autocast: a 16-bit forward pass is compared with an fp32 one. Up to 0.07 in 35
    healthy tiny runs in bf16. Mistakes in loss or gradient are judged at the logits, with their full digits."""

    def limit(self, trace: Trace) -> float:
        """Return the limit for the precision, and for the depth of the model where it rounds."""
        if trace.run.lora is None and not trace.one(Setup).exact:
            return self.max_error_autocast
        limit = super().limit(trace)
        return limit if limit == self.max_error_fp32 else limit * max(1.0, math.sqrt(trace.run.layers / ROUNDED_LAYERS))


class AccumulationOracle(WindowGradient):
    """A step's gradient is that of the mean loss over its supervised tokens, however its rows are batched."""

    needs = LossOracle.needs | {Premise.LOSS_UNSMOOTHED, Premise.GRADIENT_WHOLE}
    premises_to_fail = UNCHANGED
    meaning = f"""{AVERAGED} {NORMALISED} Gradients are not cleared. Padding or another row leaks in. Gradients are
    scaled. The loss has low precision. There is no gradient at all."""
    remedy = """Compare the errors of the tensors. An error near 1 everywhere means a wrong scale or stale gradients; a
    small one everywhere means wrong row weights."""

    worst_tensor_factor: float = 4.0
    """Error of a single tensor over that of the whole gradient."""
    max_token_ratio: float = 2.0
    """Supervised tokens of a step's largest micro-batch over its smallest, in a loop that averages means."""
    max_error_own_logits: float = 5e-4
    """Error of the gradient by the trainer's own logits, both rounded to their dtype. At most 1e-6 measured on a tiny
    model and 8e-5 on SmolLM2-135M, in fp32, bf16 and fp16. A softmax in bf16 is off by 3e-3. A z-loss of 1e-3 is off by
    6e-4 with nearly uniform logits, and by 1e-2 in a trained model. The limit is at least one unit in the last place of
    the largest element. A loss near 0 has a gradient of few elements, 1e-3 off in one of 195 tiny bf16 runs."""

    def judge(self, trace: Trace) -> Finding:
        limit, skipped = self.limit(trace), trace.skipped
        oracles = [oracle for oracle in _nearest(trace) if oracle.step not in skipped]
        oracles = required(oracles, "the scaler skipped every oracle step: name a later one")
        parts = _incomplete(trace)  # where those count less as a whole, loss_oracle asks about it
        less = {o.step for o in oracles if o.step in parts and abs(1 - o.gradient_error - parts[o.step]) <= limit}
        oracles = required([o for o in oracles if o.step not in less], "every oracle step has an incomplete window")
        worst = worst_of(oracles, key=lambda oracle: oracle.gradient_error)
        tensor = worst_of(oracles, key=lambda oracle: oracle.worst_gradient_error)
        detail = f"step {worst.step} ({worst.split}): error {worst.gradient_error:.3g} of the norm {worst.norm:.4g}"
        detail += f", worst tensor {tensor.worst_gradient} {tensor.worst_gradient_error:.3g} at step {tensor.step}"
        finer = [(tensor.worst_gradient_error, self.worst_tensor_factor * limit)]
        passed = worst.gradient_error <= limit and tensor.worst_gradient_error <= finer[0][1]
        norms = {seen.step: math.hypot(*seen.norms.values()) for seen in trace.records(Gradients)}
        named = "" if passed else named_ratio(trace, worst.step, norms.get(worst.step, math.nan), worst.norm)
        detail += named
        own = {loss.step: loss.gradient_error for loss in trace.records(OwnLoss) if loss.step not in skipped | less}
        if logits := {s: min(e, abs(e - trace.first_labels_counted(s))) for s, e in own.items() if e is not None}:
            noise = {seen.step: seen.gradient_noise or 0.0 for seen in trace.records(OwnLoss)}
            limits = {step: max(self.max_error_own_logits, noise.get(step, 0.0)) for step in logits}
            step, error = worst_of(logits.items(), key=lambda item: item[1] / limits[item[0]])
            detail += f"; gradient by the logits {error:.3g} at step {step}"
            finer.append((error, limits[step]))
        counts = {seen.step: seen.micro_batch_tokens for seen in trace.records(Gradients)}
        windows = [(oracle, counts[oracle.step]) for oracle in oracles if counts.get(oracle.step)]
        if windows and all(len(set(tokens)) == 1 for _, tokens in windows):
            single = all(len(tokens) == 1 for _, tokens in windows)
            alike = "one micro-batch in a window" if single else "micro-batches of equal token counts"
            detail += f"; {alike}: averaging their means is undetectable"
        of_means = [max(tokens) / min(tokens) for oracle, tokens in windows if oracle.of_means and min(tokens)]
        ratio = max(of_means, default=0.0)
        fits = worst.gradient_error <= limit and all(value <= most for value, most in finer)
        if ratio > self.max_token_ratio and fits:
            detail = f"micro-batch means are averaged, and token counts differ by a factor of {ratio:.1f}; {detail}"
            return self.at_most(ratio, self.max_token_ratio, detail, meant=MEANS_AVERAGED, causes=[AVERAGED])
        if abs(worst.gradient_error - (share := trace.first_labels_counted(worst.step))) <= limit < share:
            return self.at_most(abs(worst.gradient_error - share), limit, detail + WITH_FIRST_LABELS)
        differing, confirmed = sum(not seen.gradient_error <= limit for seen in oracles), bool(named)
        meant = unwitnessed(differing, len(oracles), confirmed=confirmed or _oracle_confirmed(trace, limit))
        return self.at_most(worst.gradient_error, limit, detail, *finer, meant=meant, causes=[NORMALISED] * bool(named))


class GradientsAveraged(WindowGradient):
    """Every rank's gradient is the mean of the gradients of all ranks' rows, computed separately.

    Ranks count equally, or by their supervised tokens.
    """

    needs = AccumulationOracle.needs - {"oracle", Premise.EVERY_ROW_SEEN} | {"parallel", "user_code"}
    across_ranks = True
    meaning = """Gradients are summed over the ranks instead of averaged. Or the loss is divided by the number of ranks
    and averaged again. Or gradients are clipped before all_reduce. Or one rank has wrong labels, mask or loss."""
    remedy = "Let DDP average. If you call all_reduce, divide by the number of ranks once. Clip after the exchange."

    def judge(self, trace: Trace) -> Finding:
        ranks = [trace.of_rank(rank) for rank in trace.of_every_rank(Step)]
        for rank, own in enumerate(ranks):
            required(not (reason := own.why(self.needs)), f"rank {rank}: {reason}")
        required(not (why := trace.averaged_at_times), why)
        seen = [{one.step: one for one in rank.records(OwnRowsGradient)} for rank in ranks]
        steps = set.intersection(*map(set, seen)) - trace.skipped
        steps = required(steps, "no gradient of a rank's own rows is known, as with dropout in a loop")
        limit = self.limit(trace)
        errors = {step: _error_of_mean([held[step] for held in seen]) for step in steps}
        step, (error, ratio) = worst_of(errors.items(), key=lambda item: item[1][0])
        detail = f"step {step}: error {error:.3g} of the mean gradient of {len(ranks)} ranks' own rows"
        detail += "" if error <= limit else named_ratio(trace, step, ratio, 1.0)
        meant = "the learning rate may be chosen for a sum over the ranks" if round(ratio, 2) == len(ranks) else ""
        return self.at_most(error, limit, detail, meant=meant)


def _error_of_mean(ranks: Sequence[OwnRowsGradient]) -> tuple[float, float]:
    """Return the error of the ranks' gradients against the mean of their own; and their ratio where all else fits.

    The ranks count alike in a mean, or by their tokens: the nearest one counts.
    """
    tokens, got, found = sum(rank.tokens for rank in ranks), ranks[0].got, []
    for of_means in (0, -1):
        for shares in ([1 / len(ranks) for _ in ranks], [rank.tokens / (tokens or 1) for rank in ranks]):
            parts = [[share * value for value in rank.own[of_means]] for share, rank in zip(shares, ranks, strict=True)]
            mean = [math.fsum(values) for values in zip(*parts, strict=True)]
            norm = math.hypot(*mean) or math.nan
            ratio = sum(map(mul, got, mean)) / norm**2
            rest = math.dist(got, [ratio * value for value in mean]) / norm
            error = max((math.dist(rank.got, mean) / norm for rank in ranks), key=or_infinite)
            found.append((error, ratio if rest <= RATIO_ROUNDING else 0.0))
    return min(or_infinite(error) for error, _ in found), max(ratio for _, ratio in found)
