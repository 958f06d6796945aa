"""Loss and gradient of a training step, held against other code and against the loss itself."""

import math

from tunecheck.core import evidence
from tunecheck.core.check import Check, NumericCheck, recorded, relative_error, required, said_once, some, worst_of
from tunecheck.core.finding import Finding
from tunecheck.core.premises import PLAIN_BACKWARD, UNCHANGED, Premise
from tunecheck.core.trace import Trace


class GradientsCleared(Check):
    """Every gradient is zero or None when a step begins."""

    needs = frozenset({Premise.GRADIENTS_CLEARED_BEFORE})
    meaning = "zero_grad is missing, runs before backward ends, or belongs to an optimizer of other tensors."
    remedy = "Call optimizer.zero_grad(set_to_none=True) after every optimizer step, including skipped ones."

    def judge(self, trace: Trace) -> Finding:
        steps, began = trace.all(evidence.Gradients), "it began with gradients of"
        held = [(seen.step, seen.left_over) for seen in steps if seen.left_over]
        problems = said_once((f"step {step}", f"{began} {len(left)} tensors: {some(left)}", "") for step, left in held)
        return self.unless(problems, f"gradients were clear at the start of {len(steps)} steps", most=3)


class WeightGradients(Check):
    """The gradient of a trained linear is the sum of the products of its inputs and output gradients.

    The sum runs over all tokens of a step. Each step checks some linears, and a run checks all of them. A trained
    embedding's gradient is the sum of its rows' gradients, plus the head's if both are tied.
    """

    needs = PLAIN_BACKWARD | {Premise.EVERY_ROW_SEEN, Premise.LOSS_UNSCALED, Premise.GRADIENT_WHOLE}
    premises_to_fail = UNCHANGED
    meaning = """The optimizer receives another gradient than backward computed: scaled, left over from other steps,
    compressed, or summed too coarsely. A penalty or noise is added. A tied embedding trains as a head alone."""
    remedy = "Search for hooks on parameters, gradient compression, a scale that is not undone, and detach calls."

    max_error_fp32: float = 1e-4
    """Error if output, weight and gradient are fp32, as with adapters in every precision."""
    max_error_16bit: float = 1e-2
    """Error if one of them is 16 bit: autocast products, and adapters with adapter_dtype: model or mixed."""

    def judge(self, trace: Trace) -> Finding:
        skipped = trace.skipped
        seen = [seen for seen in trace.all(evidence.WeightGradient) if seen.linears and seen.step not in skipped]
        seen = required(seen, "no trained linear was called as a module in an applied step")
        worst = worst_of(seen, key=lambda gradient: gradient.error / self._limit(trace, gradient))
        detail = f"worst of {sum(gradient.linears for gradient in seen)}: {worst.worst} in step {worst.step}, "
        detail += f"off by {worst.error:.3g} ({some(worst.dtypes)})"
        return self.at_most(worst.error, self._limit(trace, worst), detail)

    def _limit(self, trace: Trace, gradient: evidence.WeightGradient) -> float:
        fine = gradient.dtypes == ("float32",) and not trace.one(evidence.Setup).rounds_products
        return self.max_error_fp32 if fine else self.max_error_16bit


class GradientMatchesLoss(Check):
    """Along the gradient, the loss changes at the rate that the gradient predicts, as a whole and for each decoder
    layer.

    Two forward passes measure the slope without autograd. Other checks share a mistake in a backward pass.
    """

    needs = frozenset({"directional", "oracle"})
    meaning = """A backward pass does not match its forward pass: a fused kernel, a custom autograd function or a hook
    scales, drops or doubles a part."""
    remedy = "Turn fused kernels and hooks off one by one. Run torch.autograd.gradcheck on them."

    max_error: float = 2e-3
    """Error of the slope: up to 2e-4 in three healthy runs of a tiny model, 1e-2 with one gradient doubled."""
    max_layer_error: float = 5e-3
    """Error of a layer's slope: up to 1.5e-4 in the 30 layers of SmolLM2-135M. A norm that loses half of its gradient
    gives 0.8, and hardly changes the whole model's slope."""

    def judge(self, trace: Trace) -> Finding:
        errors = {o.step: o.directional_error for o in trace.all(evidence.Oracle) if o.directional_error is not None}
        recorded(errors, "the slope of the loss was not measured")
        step, error = worst_of(errors.items(), key=lambda item: item[1])
        layers = trace.one(evidence.LayerGradients)
        detail = f"step {step}: the slope of the loss differs from the gradient's by {error:.3g}"
        detail += f"; layer {layers.worst} alone differs by {layers.error:.3g}"
        of_layers = layers.error, self.max_layer_error
        if trace.run.lora and trace.run.lora.use_dora:  # section 4.3 of its paper; a layer's slope leaves the norms out
            detail += "; DoRA treats its norms as constant in the gradient, so only the layers are judged"
            return self.at_most(*of_layers, detail)
        return self.at_most(error, self.max_error, detail, of_layers)


class RecomputationEquals(Check):
    """Gradient checkpointing leaves a row's gradient unchanged under the same random state."""

    needs = frozenset({"checkpointing", Premise.CAUSAL_LM})
    meaning = """Recomputation differs from the forward pass: dropout draws other masks, or mode, dtype or adapters
    changed in between. The gradient then belongs to no function."""
    remedy = "Leave preserve_rng_state on. Change nothing in the model between forward and backward."

    max_error: float = 1e-5
    """0 on a CPU, which sums in the same order. A GPU may sum in another order."""
    max_noise_factor: float = 4.0
    """Multiple of the difference between two gradients without recomputation. It is 0 in every precision if sums keep
    their order. Recomputation may then add no rounding in 16 bit either."""

    def judge(self, trace: Trace) -> Finding:
        seen = trace.one(evidence.Recomputation)
        limit = max(self.max_noise_factor * seen.repeat_error, self.max_error)  # NaN stays NaN
        detail = f"with {seen.layers} layers recomputed the gradient is {seen.gradient_error:.3g} off"
        detail += f"; without recomputation two gradients differ by {seen.repeat_error:.3g}"
        return self.at_most(seen.gradient_error, limit, detail)


class LoraGradientSchedule(Check):
    """lora_B (and DoRA's magnitude) has a gradient from the start, lora_A after B has moved, the base never."""

    needs = PLAIN_BACKWARD | {"adapters", Premise.ADAPTERS_ENUMERATED, Premise.ADAPTERS_FRESH}
    premises_to_fail = UNCHANGED | {Premise.GRADIENT_DUE}
    meaning = """Something cuts the gradient before the adapters: a detach, no_grad, reentrant checkpointing with frozen
    inputs, or an inference-only kernel after an evaluation. Or the forward pass skips the adapters."""
    remedy = "Set use_reentrant=False. Check what the layers of the first named tensors have in common."

    def judge(self, trace: Trace) -> Finding:
        moved, found = False, list[tuple[str, str, str]]()
        parts = "lora_A", "lora_B", "lora_magnitude_vector"
        rates = {step.step: step.learning_rate for step in trace.steps if step.applied}
        seen, rest = trace.all(evidence.Gradients), trace.unused
        told = Premise.LABELS_KNOWN if trace.holds(Premise.CAUSAL_LM) else Premise.STEP_DECLARED
        due = [] if trace.holds(told) else [step for step in seen if any(step.norms.values())]
        for gradients in due or seen:  # the samples of a step may all be worth the same
            if gradients.step in trace.skipped:  # gradients that overflowed: NaN is 0 x inf
                continue
            zero = [name for name in gradients.zero if name not in rest]
            zero_a, zero_b, zero_m = ([name for name in zero if f".{part}." in name] for part in parts)
            early = not moved and gradients.norms.get("lora_A", 0.0) != 0.0
            wrong = {
                f"no gradient for {len(zero_m)} magnitudes: {some(zero_m)}": zero_m,
                f"no gradient for {len(zero_b)} lora_B: {some(zero_b)}": zero_b,
                f"no gradient for {len(zero_a)} lora_A after B moved: {some(zero_a)}": moved and zero_a,
                "lora_A has a gradient though B is zero: B did not start at zero": early,
                f"gradients on frozen tensors: {some(gradients.frozen_with_gradient)}": gradients.frozen_with_gradient,
            }
            found += [(f"step {gradients.step}", sentence, "") for sentence, holds in wrong.items() if holds]
            moved = moved or rates.get(gradients.step, 0.0) > 0
        recorded(moved, "no step had a learning rate above zero")
        return self.unless(said_once(found), f"{len(due or seen)} steps as expected", most=3)


class GradientNormReported(NumericCheck):
    """The reported gradient norm is that of the unscaled gradients before clipping."""

    needs = frozenset({Premise.LOSS_UNSCALED, Premise.GRADIENT_WHOLE, Premise.CLIPPED_WHOLE, Premise.NORM_REPORTED})
    meaning = "The norm is taken before unscaling, after clipping or over other tensors. Clipping may use it, too."
    remedy = "Unscale first, clip second, and report the return value of clip_grad_norm_."

    max_error_fp32: float = 1e-4
    """2e-7 measured in fp32, bf16 and fp16: trained tensors and their gradients are fp32 in each."""
    max_error_16bit: float = 1e-4
    max_error_16bit_weights: float = 1e-2
    """Error of gradients in 16 bit, with adapter_dtype: model."""

    def judge(self, trace: Trace) -> Finding:
        limit = self.max_error_16bit_weights if trace.trains_16bit_weights else self.limit(trace)
        reported = {step.step: step.gradient_norm for step in trace.steps if step.applied}
        norms = {g.step: math.hypot(*g.norms.values()) for g in trace.all(evidence.Gradients) if g.step in reported}
        recorded(norms, "no applied step has both a reported norm and gradients")
        errors = {step: relative_error(reported[step], norm) for step, norm in norms.items()}
        step = worst_of(errors, key=lambda step: errors[step])
        detail = f"step {step}: reported {reported[step]:.6g}, the gradients have {norms[step]:.6g}"
        return self.at_most(errors[step], limit, detail)


class Fp16GradientsScaled(Check):
    """A GradScaler scales fp16 gradients up, unless they are large enough without it."""

    needs = frozenset({"user_code"})
    convention = "the gradients that fp16 loses may matter little"
    meaning = "fp16 is used without torch.amp.GradScaler: small gradients lose digits or become 0."
    remedy = "Use bf16. Or keep weights in fp32 and call scaler.scale(loss).backward(), scaler.step(), update()."

    max_share: float = 0.05
    """Share of the gradient's nonzero elements below 6.1e-5, where fp16 loses digits, in every step."""

    def judge(self, trace: Trace) -> Finding:
        shares = [seen.subnormal for seen in trace.all(evidence.Gradients) if seen.subnormal is not None]
        least = min(required(shares, "nothing is computed in fp16"))
        scaled = any("scale" in seen.calls for seen in trace.records(evidence.CallOrder))
        required(not scaled, "a GradScaler scales the loss")
        detail = f"no GradScaler, and {least:.0%} or more of the gradients' elements are below 6.1e-5 in each step"
        return self.at_most(least, self.max_share, detail)


class Finite(Check):
    """Every loss, gradient norm, gradient and weight is finite in each applied step."""

    needs = frozenset()
    meaning = "A number overflowed, mostly in fp16. A mean was taken over zero supervised tokens. The GPU is faulty."
    remedy = "Search the first step that the finding names for rows without labels. Use bf16 instead of fp16."

    def judge(self, trace: Trace) -> Finding:
        applied = [step for step in trace.steps if step.applied]
        odd = [step for step in applied if not (math.isfinite(step.loss) and math.isfinite(step.gradient_norm))]
        problems = [f"step {step.step}: loss {step.loss}, gradient norm {step.gradient_norm}" for step in odd]
        taken = [seen for seen in trace.all(evidence.Gradients) if seen.step not in trace.skipped]
        problems += [f"step {seen.step}: gradients of {some(seen.nonfinite)}" for seen in taken if seen.nonfinite]
        if broken := trace.one(evidence.Movement).nonfinite:
            problems.append(f"weights after training: {some(broken)}")
        evaluations = trace.all(evidence.Evaluation) if trace.run.evaluated else []
        problems += [f"evaluation before step {e.step}: {e.loss}" for e in evaluations if not math.isfinite(e.loss)]
        return self.unless(problems, f"{len(trace.steps)} steps", most=3)
