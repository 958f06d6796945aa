"""Loss and gradient of a training step, held against other code and against the loss itself."""

import math
from collections.abc import Sequence
from operator import mul

from tunecheck.checks.attempts import of_every_rank
from tunecheck.core.check import (
    Check,
    NumericCheck,
    binary_digits,
    knows_model,
    or_infinite,
    relative_error,
    some,
    trains_16bit_weights,
    unwitnessed,
    worst_of,
)
from tunecheck.core.errors import MissingEvidence
from tunecheck.core.evidence import (
    Evaluation,
    Gradients,
    LayerGradients,
    Movement,
    Oracle,
    OwnLoss,
    OwnRowsGradient,
    Recomputation,
    Setup,
    Step,
    WeightGradient,
    Window,
)
from tunecheck.core.finding import Finding
from tunecheck.core.premises import Premise
from tunecheck.core.trace import Trace

UNCHANGED = frozenset({Premise.WEIGHTS_STILL, Premise.GRADIENTS_UNEDITED})
"""What must hold of a gradient that differs from its loss's: nobody changes either on purpose."""


class GradientsCleared(Check):
    """Every gradient is zero or None when a step begins."""

    premises = frozenset({Premise.GRADIENTS_CLEARED_BEFORE})
    meaning = (
        "zero_grad is missing, runs before backward ends, or belongs to an optimizer of other tensors. Each step then "
        "adds the gradients of earlier steps."
    )
    remedy = "Call optimizer.zero_grad(set_to_none=True) after every optimizer step, including skipped ones."

    def judge(self, trace: Trace) -> Finding:
        steps = trace.all(Gradients)
        problems = [
            f"step {gradients.step} began with gradients of {len(gradients.left_over)} tensors: "
            f"{some(gradients.left_over)}"
            for gradients in steps
            if gradients.left_over
        ]
        detail = "; ".join(problems[:3]) or f"gradients were clear at the start of {len(steps)} steps"
        return self.found(not problems, detail, measured=len(problems), limit=0)


class LossOracle(NumericCheck):
    """The reported loss of a step equals an independent mean over its supervised tokens."""

    premises = frozenset(
        {
            Premise.CAUSAL_LM,
            Premise.GRADIENT_SUMMED,
            Premise.ROWS_FOLLOWED,
            Premise.LABELS_KNOWN,
            Premise.EVERY_ROW_SEEN,
            Premise.LOSS_DECLARED,
            Premise.TOKEN_MEAN_LOSS,
            Premise.LOSS_UNSCALED,
            Premise.LOSS_REPEATABLE,
        }
    )
    premises_to_fail = frozenset({Premise.WEIGHTS_STILL})
    applies_to = frozenset({"oracle"})
    meaning = (
        "Labels are shifted twice or not at all. Padding counts in the mean. Micro-batch means are averaged, or not "
        "divided by the accumulation steps. The loss is scaled. Declared label smoothing is missing. A wrong mask or "
        "wrong positions change the model's output."
    )
    remedy = (
        "Compare the two losses. A ratio near the accumulation steps points to the normalisation, any other value to "
        "the labels. Fix mask_and_positions first if it failed."
    )

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
        if reason := _nothing_supervised(trace):
            return self.unjudged(reason, expected=True)
        steps = {step.step: step.loss for step in trace.steps}
        if trace.run.smoothing:
            return self._smoothed(trace, steps)
        oracles = [oracle for oracle in _nearest(trace) if oracle.step in steps]
        if not oracles:
            raise MissingEvidence("no oracle step was trained")
        own = {loss.step: loss for loss in trace.main.all(OwnLoss) if loss.step in steps}
        if foreign := [f"step {loss.step}: {loss.foreign_rows}" for loss in own.values() if loss.foreign_rows]:
            detail = f"the model received rows with tokens of another step: {some(foreign)}"
            return self.found(False, detail, measured=len(foreign), limit=0)
        exact = {step: seen.loss for step, seen in own.items() if seen.loss is not None}
        replayed = {o.step: o.replayed_loss for o in oracles if o.replayed_loss is not None}
        compared = [("oracle", self.limit(trace), {o.step: o.loss for o in oracles})]
        compared += [("in float64 from the same logits", self.max_error_own_logits, exact)] if exact else []
        findings = []
        wrong = [
            not relative_error(steps[at], value) <= limit for _, limit, all_ in compared for at, value in all_.items()
        ]
        meant = unwitnessed(sum(wrong), len(wrong), confirmed=_oracle_confirmed(trace, self.limit(trace)))
        for name, limit, wanted in compared:
            told = {**steps, **replayed} if name == "oracle" else steps
            step = worst_of(wanted, key=lambda step: relative_error(told[step], wanted[step]))
            value, word = told[step], "again without dropout" if told is not steps and step in replayed else "reported"
            if not relative_error(value, wanted[step]) <= limit and (tokens := _divided_later(trace, step)):
                value, word = value / tokens, f"reported as a sum over {tokens} tokens, with a mean of"
            error = relative_error(value, wanted[step])
            detail = f"step {step}: {word} {value:.6f}, {name} {wanted[step]:.6f} ({oracles[0].split})"
            ratio = "" if error <= limit else named_ratio(trace, step, value, wanted[step])
            meant = "" if ratio else meant  # a number of this training's confirms it
            findings.append(self.found(error <= limit, detail + ratio, measured=error, limit=limit, meant=meant))
        digits = max(map(binary_digits, steps.values()))
        if len(steps) >= self.min_steps_of_digits and digits < self.min_digits:
            detail = f"none of {len(steps)} reported losses has more than {digits} binary digits"
            findings.append(self.found(False, detail, measured=digits, limit=self.min_digits))
        return next((finding for finding in findings if not finding.passed), findings[0])

    def _smoothed(self, trace: Trace, steps: dict[int, float]) -> Finding:
        """Judge that the loss is not the plain one; how a smoothed one is averaged depends on the library's version."""
        declared, limit = f"label_smoothing_factor = {trace.run.smoothing:g}", self.max_error_own_logits
        plain = {
            seen.step: seen.loss for seen in trace.main.all(OwnLoss) if seen.step in steps and seen.loss is not None
        }
        errors = {step: relative_error(steps[step], loss) for step, loss in plain.items()}
        if errors and max(errors.values()) <= limit:
            step = next(iter(errors))
            detail = f"{declared} is declared, but the loss is not smoothed: step {step}: {steps[step]:.6f}"
            return self.found(False, detail, measured=errors[step], limit=f"more than {limit:g}")
        return self.unjudged(f"the loss is smoothed: {declared}", expected=True)


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
    own = {seen.step: seen.loss for seen in trace.main.all(OwnLoss) if seen.loss is not None}
    alike = (relative_error(seen.loss, own[seen.step]) <= limit for seen in trace.main.all(Oracle) if seen.step in own)
    return knows_model(trace) or any(alike)


def named_ratio(trace: Trace, step: int, value: float, wanted: float) -> str:
    """Return what the ratio of a wrong value to the right one is, as a clause: "; 4.00 times, as the window has ..."

    "" where it is no number of this step's, or its inverse.
    """
    tokens = next((seen.micro_batch_tokens for seen in trace.main.all(Gradients) if seen.step == step), ())
    window = [seen for seen in trace.main.all(Window) if seen.step == step]
    counts = {
        "micro-batches": len(tokens),
        "processes": trace.run.processes,
        "micro-batches of all processes": len(tokens) * trace.run.processes,
        "supervised tokens": window[0].supervised_tokens if window else 0,
    }
    ratio = value / wanted if wanted else math.nan
    for name, count in counts.items():
        for factor in (count, 1 / count) if count > 1 else ():
            if abs(ratio / factor - 1) <= RATIO_ROUNDING:
                times = f"{ratio:.2f} times" if factor > 1 else f"1/{1 / ratio:.2f} of it"
                return f": {times}, and the step has {count} {name}"
    return ""


RATIO_ROUNDING = 0.01
"""Relative difference of a ratio from a whole number which it is named by."""


def _nothing_supervised(trace: Trace) -> str:
    """Return why there is no oracle, where its windows have no token whose mean it could be; "" else."""
    empty = [str(window.step) for window in trace.main.all(Window) if not window.supervised_tokens]
    without = empty and not trace.main.all(Oracle)
    return f"steps {some(empty)} supervise no token: their mean is 0/0" if without else ""


def _divided_later(trace: Trace, step: int) -> int:
    """Return the tokens over which a loop's loss may be a sum, as it writes to the gradients; 0 where it does not."""
    if trace.holds(Premise.GRADIENTS_UNEDITED):
        return 0
    return next((window.supervised_tokens for window in trace.main.all(Window) if window.step == step), 0)


MEANS_AVERAGED = "micro-batches may have equal weight on purpose, as with several tasks or sources"


ROUNDED_LAYERS = 6
"""Layers of a model whose 16-bit gradient is held to the plain limit."""


class WindowGradient(NumericCheck):
    """A step's gradient equals one that other code computes from the same rows."""

    max_error_fp32: float = 1e-4  # 1e-6 measured; a softmax in bf16 is off by 3e-4
    max_error_16bit: float = 5e-2
    """Error in bf16 or fp16, for up to six layers. Layers round independently, so the errors of L layers add up as
    sqrt(L), and the limit grows by sqrt(L / 6): to 0.11 for SmolLM2-135M, whose healthy bf16 trainings reach 0.055 on a
    CPU with AMX."""
    max_error_autocast: float = 0.2
    """Error for a base trained under autocast: a 16-bit forward pass is compared with an fp32 one. Up to 0.07 in 35
    healthy tiny runs in bf16. Mistakes in loss or gradient are judged at the logits, with their full digits."""

    def limit(self, trace: Trace) -> float:
        """Return the limit for the precision, and for the depth of the model where it rounds."""
        if trace.run.lora is None and trace.one(Setup).precision != "fp32":
            return self.max_error_autocast
        limit = super().limit(trace)
        return limit if limit == self.max_error_fp32 else limit * max(1.0, math.sqrt(trace.run.layers / ROUNDED_LAYERS))


class AccumulationOracle(WindowGradient):
    """The gradient of a step is the sum of its rows' gradients over the supervised tokens, however rows are batched."""

    premises = LossOracle.premises | {Premise.LOSS_UNSMOOTHED, Premise.GRADIENT_WHOLE}
    premises_to_fail = UNCHANGED
    applies_to = frozenset({"oracle"})
    meaning = (
        "Micro-batch means are averaged. Gradients are not cleared. Padding or another row leaks in. Gradients are "
        "scaled. The loss has low precision. There is no gradient at all."
    )
    remedy = (
        "Compare the errors of the tensors. An error near 1 everywhere means a wrong scale or stale gradients, a small "
        "one everywhere wrong row weights."
    )

    worst_tensor_factor: float = 4.0
    """Error of a single tensor over that of the whole gradient."""
    max_token_ratio: float = 2.0
    """Supervised tokens of a step's largest micro-batch over its smallest, in a loop that averages micro-batch
    means."""
    max_error_own_logits: float = 5e-4
    """Error of the gradient by the trainer's own logits, both rounded to their dtype. At most 1e-6 measured on a tiny
    model and 8e-5 on SmolLM2-135M, in fp32, bf16 and fp16. A softmax in bf16 is off by 3e-3. A z-loss of 1e-3 is off by
    6e-4 with nearly uniform logits, and by 1e-2 in a trained model. The limit is at least one unit in the last place of
    the largest element. A loss near 0 has a gradient of few elements, 1e-3 off in one of 195 healthy tiny runs in
    bf16."""

    def judge(self, trace: Trace) -> Finding:
        if reason := _nothing_supervised(trace):
            return self.unjudged(reason, expected=True)
        limit, skipped = self.limit(trace), {step.step for step in trace.steps if not step.applied}
        oracles = [oracle for oracle in _nearest(trace) if oracle.step not in skipped]
        if not oracles:
            return self.unjudged("the scaler skipped every oracle step: name a later one", expected=True)
        worst = worst_of(oracles, key=lambda oracle: oracle.gradient_error)
        tensor = worst_of(oracles, key=lambda oracle: oracle.worst_gradient_error)
        detail = f"step {worst.step} ({worst.split}): error {worst.gradient_error:.3g} of the norm {worst.norm:.4g}"
        detail += f", worst tensor {tensor.worst_gradient} {tensor.worst_gradient_error:.3g} at step {tensor.step}"
        of_tensor, tensor_limit = tensor.worst_gradient_error, self.worst_tensor_factor * limit
        passed = worst.gradient_error <= limit and of_tensor <= tensor_limit
        norms = {seen.step: math.hypot(*seen.norms.values()) for seen in trace.main.all(Gradients)}
        named = "" if passed else named_ratio(trace, worst.step, norms.get(worst.step, math.nan), worst.norm)
        detail += named
        confirmed = bool(named) or _oracle_confirmed(trace, self.limit(trace))
        alike = sum(not seen.gradient_error <= limit for seen in oracles)
        own = {loss.step: loss.gradient_error for loss in trace.main.all(OwnLoss) if loss.step not in skipped}
        logits = {step: error for step, error in own.items() if error is not None}
        if logits:
            noise = {seen.step: seen.gradient_noise or 0.0 for seen in trace.main.all(OwnLoss)}
            limits = {step: max(self.max_error_own_logits, noise.get(step, 0.0)) for step in logits}
            step, error = worst_of(logits.items(), key=lambda item: item[1] / limits[item[0]])
            detail += f"; gradient by the logits {error:.3g} at step {step}"
            if not error <= limits[step] and passed:
                return self.found(False, detail, measured=error, limit=limits[step])
        if blind := _unseen_accumulation(trace, {oracle.step for oracle in oracles}):
            detail += f"; {blind}: averaging their means is undetectable"
        if worst.gradient_error <= limit and not passed:
            return self.found(False, detail, measured=of_tensor, limit=tensor_limit)
        if passed and (ratio := _unequal_means(trace, oracles)) > self.max_token_ratio:
            detail = f"micro-batch means are averaged, and token counts differ by a factor of {ratio:.1f}; {detail}"
            return self.found(False, detail, measured=ratio, limit=self.max_token_ratio, meant=MEANS_AVERAGED)
        meant = unwitnessed(alike, len(oracles), confirmed=confirmed)
        return self.found(passed, detail, measured=worst.gradient_error, limit=limit, meant=meant)


def _unequal_means(trace: Trace, oracles: Sequence[Oracle]) -> float:
    """Return by how much the micro-batches differ, in tokens, whose means are averaged; 0 where none are."""
    of_means = {oracle.step for oracle in oracles if oracle.of_means}
    counts = [sorted(seen.micro_batch_tokens) for seen in trace.main.all(Gradients) if seen.step in of_means]
    return max((tokens[-1] / tokens[0] for tokens in counts if tokens and tokens[0]), default=0.0)


def _unseen_accumulation(trace: Trace, steps: set[int]) -> str:
    """Return why an average of the micro-batches' means would equal the window's mean in these steps; "" if not."""
    counts = [g.micro_batch_tokens for g in trace.main.all(Gradients) if g.step in steps]
    if counts and all(len(tokens) == 1 for tokens in counts):
        return "one micro-batch in a window"
    if counts and all(len(set(tokens)) == 1 for tokens in counts):
        return "micro-batches of equal token counts"
    return ""


SUMMED = "the learning rate may be chosen for a sum over the ranks"
RATIO_ERROR = 0.01
"""Of a gradient that a factor makes another one."""


class GradientsAveraged(WindowGradient):
    """Every rank's gradient is the mean of the gradients of all ranks' rows, computed separately.

    Ranks count equally, or by their supervised tokens.
    """

    premises = AccumulationOracle.premises - {Premise.EVERY_ROW_SEEN}
    across_ranks = True
    applies_to = frozenset({"parallel", "user_code"})
    meaning = (
        "Gradients are summed over the ranks instead of averaged. Or the loss is divided by the number of ranks and "
        "averaged again. Or gradients are clipped before all_reduce. Or one rank has wrong labels, mask or loss."
    )
    remedy = "Let DDP average. If you call all_reduce, divide by the number of ranks once. Clip after the exchange."

    def judge(self, trace: Trace) -> Finding:
        ranks = [trace.of_rank(rank) for rank in of_every_rank(trace, Step)]
        for rank, own in enumerate(ranks):
            if reason := own.why(self.premises):
                return self.unjudged(f"rank {rank}: {reason}", expected=True)
        seen = [{one.step: one for one in rank.main.all(OwnRowsGradient)} for rank in ranks]
        steps = set.intersection(*map(set, seen)) - {step.step for step in trace.steps if not step.applied}
        if not steps:
            return self.unjudged("no gradient of a rank's own rows is known, as with dropout in a loop", expected=True)
        limit = self.limit(trace)
        errors = {step: _error_of_mean([held[step] for held in seen]) for step in steps}
        step, (error, ratio) = worst_of(errors.items(), key=lambda item: item[1][0])
        detail = f"step {step}: error {error:.3g} of the mean gradient of {len(ranks)} ranks' own rows"
        detail += "" if error <= limit else named_ratio(trace, step, ratio, 1.0)
        meant = SUMMED if round(ratio, 2) == len(ranks) else ""
        return self.found(error <= limit, detail, measured=error, limit=limit, meant=meant)


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
            found.append((error, ratio if rest <= RATIO_ERROR else 0.0))
    return min(or_infinite(error) for error, _ in found), max(ratio for _, ratio in found)


class WeightGradients(Check):
    """The gradient of a trained linear is the sum of the products of its inputs and output gradients.

    The sum runs over all tokens of a step. Each step checks some linears, and a run checks all of them. A trained
    embedding's gradient is the sum of its rows' gradients, plus the head's if both are tied.
    """

    premises = frozenset(
        {
            Premise.CAUSAL_LM,
            Premise.GRADIENT_SUMMED,
            Premise.EVERY_ROW_SEEN,
            Premise.LOSS_UNSCALED,
            Premise.GRADIENT_BY_FORWARD,
            Premise.GRADIENT_WHOLE,
        }
    )
    premises_to_fail = UNCHANGED
    meaning = (
        "The optimizer receives another gradient than backward computed. Gradients are scaled, left over from other "
        "steps, compressed, or summed with too little precision. A penalty or noise is added. A tied embedding trains "
        "as a head alone."
    )
    remedy = "Search for hooks on parameters, gradient compression, a scale that is not undone, and detach calls."

    max_error_fp32: float = 1e-4
    """Error if output, weight and gradient are fp32, as with adapters in every precision."""
    max_error_16bit: float = 1e-2
    """Error if one of them is 16 bit: autocast products, and adapters with adapter_dtype: model or mixed."""

    def judge(self, trace: Trace) -> Finding:
        skipped = {step.step for step in trace.steps if not step.applied}
        seen = [seen for seen in trace.all(WeightGradient) if seen.linears and seen.step not in skipped]
        if not seen:
            return self.unjudged("no trained linear was called as a module in an applied step", expected=True)
        worst = worst_of(seen, key=lambda gradient: gradient.error / self._limit(gradient))
        detail = f"worst of {sum(gradient.linears for gradient in seen)}: {worst.worst} in step {worst.step}, "
        detail += f"off by {worst.error:.3g} ({some(worst.dtypes)})"
        passed = worst.error <= self._limit(worst)
        return self.found(passed, detail, measured=worst.error, limit=self._limit(worst))

    def _limit(self, gradient: WeightGradient) -> float:
        return self.max_error_fp32 if gradient.dtypes == ("float32",) else self.max_error_16bit


class GradientMatchesLoss(Check):
    """Along the gradient, the loss changes at the rate that the gradient predicts, as a whole and for each decoder
    layer.

    Two forward passes measure the slope without autograd. Other checks share a mistake in a backward pass.
    """

    applies_to = frozenset({"directional", "oracle"})
    meaning = (
        "A backward pass does not match its forward pass: a fused kernel, a custom autograd function or a hook scales, "
        "drops or doubles a part."
    )
    remedy = "Turn fused kernels and hooks off one by one. Run torch.autograd.gradcheck on them."

    max_error: float = 2e-3
    """Error of the slope: 5e-5 to 2e-4 in three healthy runs of a tiny model, 1e-2 with one tensor's gradient
    doubled."""
    max_layer_error: float = 5e-3
    """Error of a layer's slope: up to 1e-5 in the 30 layers of SmolLM2-135M. A norm that loses half of its gradient
    gives 0.8, and hardly changes the whole model's slope."""

    def judge(self, trace: Trace) -> Finding:
        errors = {o.step: o.directional_error for o in trace.all(Oracle) if o.directional_error is not None}
        if not errors:
            raise MissingEvidence("the slope of the loss was not measured")
        step, error = worst_of(errors.items(), key=lambda item: item[1])
        layers = trace.one(LayerGradients)
        detail = f"step {step}: the slope of the loss differs from the gradient's by {error:.3g}"
        detail += f"; layer {layers.worst} alone differs by {layers.error:.3g}"
        if (
            trace.run.lora and trace.run.lora.use_dora
        ):  # section 4.3 of its paper; one layer's slope leaves the norms out
            detail += "; DoRA treats its norms as constant in the gradient, so only the layers are judged"
            limit = self.max_layer_error
            return self.found(layers.error <= limit, detail, measured=layers.error, limit=limit)
        if error <= self.max_error and not layers.error <= self.max_layer_error:
            return self.found(False, detail, measured=layers.error, limit=self.max_layer_error)
        return self.found(error <= self.max_error, detail, measured=error, limit=self.max_error)


class RecomputationEquals(Check):
    """Gradient checkpointing leaves a row's gradient unchanged under the same random state."""

    applies_to = frozenset({"checkpointing"})
    meaning = (
        "Recomputation differs from the forward pass: dropout draws other masks, or mode, dtype or adapters changed in "
        "between. The gradient then belongs to no function."
    )
    remedy = "Leave preserve_rng_state on. Change nothing in the model between forward and backward."

    max_error: float = 1e-5
    """0 on a CPU, which sums in the same order. A GPU may sum in another order."""
    max_noise_factor: float = 4.0
    """Multiple of the difference between two gradients without recomputation. It is 0 in every precision if sums keep
    their order. Recomputation may then add no rounding in 16 bit either."""

    def judge(self, trace: Trace) -> Finding:
        seen = trace.one(Recomputation)
        limit = max(self.max_noise_factor * seen.repeat_error, self.max_error)  # NaN stays NaN
        detail = f"with {seen.layers} layers recomputed the gradient is {seen.gradient_error:.3g} off"
        detail += f", without them twice {seen.repeat_error:.3g}"
        return self.found(seen.gradient_error <= limit, detail, measured=seen.gradient_error, limit=limit)


class LoraGradientSchedule(Check):
    """lora_B (and DoRA's magnitude) has a gradient from the start, lora_A after B has moved, the base never."""

    premises = frozenset(
        {
            Premise.CAUSAL_LM,
            Premise.GRADIENT_SUMMED,
            Premise.GRADIENT_BY_FORWARD,
            Premise.ADAPTERS_ENUMERATED,
            Premise.ADAPTERS_FRESH,
        }
    )
    premises_to_fail = UNCHANGED
    applies_to = frozenset({"adapters"})
    meaning = (
        "Something cuts the gradient before the adapters: reentrant checkpointing with frozen inputs, a detach, or an "
        "inference-only kernel after an evaluation. Or the forward pass skips the adapters."
    )
    remedy = "Set use_reentrant=False. Check what the layers of the first named tensors have in common."

    def judge(self, trace: Trace) -> Finding:
        moved, problems = False, []
        rates = {step.step: step.learning_rate for step in trace.steps if step.applied}
        skipped = {step.step for step in trace.steps if not step.applied}  # their gradients overflowed: NaN is 0 x inf
        for gradients in trace.all(Gradients):
            if gradients.step in skipped:
                continue
            zero_b = [name for name in gradients.zero if ".lora_B." in name]
            zero_a = [name for name in gradients.zero if ".lora_A." in name]
            if zero_m := [name for name in gradients.zero if ".lora_magnitude_vector." in name]:
                problems.append(f"step {gradients.step}: no gradient for {len(zero_m)} magnitudes: {some(zero_m)}")
            if zero_b:
                problems.append(f"step {gradients.step}: no gradient for {len(zero_b)} lora_B: {some(zero_b)}")
            if moved and zero_a:
                problems.append(
                    f"step {gradients.step}: no gradient for {len(zero_a)} lora_A after B moved: {some(zero_a)}"
                )
            if not moved and gradients.norms.get("lora_A", 0.0) != 0.0:
                problems.append(
                    f"step {gradients.step}: lora_A has a gradient though B is zero: B did not start at zero"
                )
            if gradients.frozen_with_gradient:
                problems.append(
                    f"step {gradients.step}: gradients on frozen tensors: {some(gradients.frozen_with_gradient)}"
                )
            moved = moved or rates.get(gradients.step, 0.0) > 0
        if not moved:
            raise MissingEvidence("no step had a learning rate above zero")
        detail = "; ".join(problems[:3]) or f"{len(trace.all(Gradients))} steps as expected"
        return self.found(not problems, detail, measured=len(problems), limit=0)


class GradientNormReported(NumericCheck):
    """The reported gradient norm is that of the unscaled gradients before clipping."""

    premises = frozenset({Premise.LOSS_UNSCALED, Premise.GRADIENT_WHOLE, Premise.CLIPPED_WHOLE, Premise.NORM_REPORTED})
    meaning = (
        "The norm is taken before unscaling, after clipping, or of other tensors. Clipping then differs from the "
        "configuration."
    )
    remedy = "Unscale first, clip second, and report the return value of clip_grad_norm_."

    max_error_fp32: float = 1e-4
    """2e-7 measured in fp32, bf16 and fp16: trained tensors and their gradients are fp32 in each."""
    max_error_16bit: float = 1e-4
    max_error_16bit_weights: float = 1e-2
    """Error of gradients in 16 bit, with adapter_dtype: model."""

    def judge(self, trace: Trace) -> Finding:
        limit = self.max_error_16bit_weights if trains_16bit_weights(trace) else self.limit(trace)
        reported = {step.step: step.gradient_norm for step in trace.steps if step.applied}
        norms = {g.step: math.hypot(*g.norms.values()) for g in trace.all(Gradients) if g.step in reported}
        if not norms:
            raise MissingEvidence("no applied step has both a reported norm and gradients")
        errors = {step: relative_error(reported[step], norm) for step, norm in norms.items()}
        step = worst_of(errors, key=lambda step: errors[step])
        detail = f"step {step}: reported {reported[step]:.6g}, the gradients have {norms[step]:.6g}"
        return self.found(errors[step] <= limit, detail, measured=errors[step], limit=limit)


class Finite(Check):
    """Every loss, gradient norm, gradient and weight is finite in each applied step."""

    premises = frozenset()
    meaning = (
        "A number overflowed, most often in fp16. A mean was taken over zero supervised tokens. The GPU is faulty."
    )
    remedy = "Inspect the first step that the finding names. Use bf16. Search its rows for one without labels."

    def judge(self, trace: Trace) -> Finding:
        problems = [
            f"step {step.step}: loss {step.loss}, gradient norm {step.gradient_norm}"
            for step in trace.steps
            if step.applied and not (math.isfinite(step.loss) and math.isfinite(step.gradient_norm))
        ]
        skipped = {step.step for step in trace.steps if not step.applied}
        problems += [
            f"step {g.step}: gradients of {some(g.nonfinite)}"
            for g in trace.all(Gradients)
            if g.nonfinite and g.step not in skipped
        ]
        problems += (
            [f"weights after training: {some(trace.one(Movement).nonfinite)}"] if trace.one(Movement).nonfinite else []
        )
        evaluations = trace.all(Evaluation) if trace.run.evaluation.splits else []
        problems += [f"evaluation before step {e.step}: {e.loss}" for e in evaluations if not math.isfinite(e.loss)]
        detail = "; ".join(problems[:3]) or f"{len(trace.steps)} steps"
        return self.found(not problems, detail, measured=len(problems), limit=0)
