"""One forward pass: deterministic, the architecture's function, rows independent, a plausible first loss."""

import math

from tunecheck.core.check import Check, NumericCheck, recorded, required, worst_of
from tunecheck.core.evidence import Evaluation, ForwardPaths, ForwardReference, LayerCalls, OwnLoss, Setup
from tunecheck.core.finding import Finding
from tunecheck.core.known_bugs import CUDNN_ATTENTION
from tunecheck.core.premises import Premise
from tunecheck.core.trace import Trace


class ForwardDeterministic(Check):
    """Two forward passes over the same rows return bit-identical logits, before training and within a step."""

    needs = frozenset({Premise.CAUSAL_LM, Premise.ARCHITECTURE_KNOWN})
    meaning = "Something adds noise to the forward pass: active dropout, an uninitialised buffer or faulty hardware."
    remedy = "Look for dropout that is active although it is configured as 0. Run the GPU diagnostics (dcgmi diag)."

    def judge(self, trace: Trace) -> Finding:
        difference = trace.one(ForwardPaths).repeat_difference
        if other := [seen.step for seen in trace.records(OwnLoss) if seen.model_repeats is False]:
            detail = f"step {other[0]}: a second forward pass of its first micro-batch gives other hidden states"
            return self.at_most(len(other), 0, detail)
        return self.at_most(difference, 0.0, "largest logit difference between two forward passes over the same rows")


EPSILON = {"bf16": 2.0**-7, "fp16": 2.0**-10}
"""A unit in the last place, relative."""
OVERFLOWS = (
    "A fused attention kernel overflows in its backward pass: cuDNN's does on compute capability 9.0 in torch 2.11 to "
    f"2.13 ({CUDNN_ATTENTION}). Call torch.backends.cuda.enable_cudnn_sdp(False) before the training."
)
NEVER_MET = "a training may never meet a masked row of this length with such scores"


class ForwardMatchesArchitecture(NumericCheck):
    """Norms, positions, attention, activation, residuals, head and linears follow the architecture's formulas.

    Independent code recomputes every operation, one relation at a time, and some rows of each linear's product. A
    skipped or misplaced layer breaks a relation too. So does wrong attention for the row lengths and padding of a
    training step. Attention that is wrong only for other lengths is suspected.
    """

    needs = frozenset({Premise.CAUSAL_LM, Premise.ARCHITECTURE_KNOWN, Premise.BASE_PLAIN})
    convention = "a script may change the function of its model, such as its attention"
    meaning = """Attention uses wrong positions or a wrong scale. A layer is skipped or out of order. The activation or
    epsilon differs. A patched or fused kernel computes something else, or with too little precision."""
    remedy = """Inspect the named module. Compare config.json with the run. Turn patches and fused kernels off. Load in
    bf16 through from_pretrained(dtype=...): model.to(bfloat16) also rounds the rotary frequencies."""

    max_error_fp32: float = 1e-4
    """Relative error of one relation; rounding gives 1e-6. In 16 bit it holds for relations computed in fp32 from the
    same inputs. It also holds for lookups, copies and single additions, which are exact there."""
    max_error_16bit: float = 3e-2
    max_product_gain: float = 1e-2
    """Share by which a linear's product, or its gradient, may be off along that of its weight. bf16 on a CPU gives 6e-4
    in two layers and 1.4e-3 in SmolLM2-135M. Not measured on a GPU."""
    max_gain_ulps: float = 0.125
    """Error of a norm's gain in 16 bit, in units of the last place. A norm in fp32 gives 0.03 to 0.05 (two random
    layers and SmolLM2-135M, bf16 and fp16), a norm in 16 bit 0.28 to 0.32."""

    def judge(self, trace: Trace) -> Finding:
        seen, limit = trace.one(ForwardReference), self.limit(trace)
        kind = trace.run.architecture.model_type
        required(seen.has_formulas, f"no reference formulas for {kind} with this rotary scaling")
        calls = trace.one(LayerCalls)
        detail = f"worst of {seen.relations} relations: {seen.worst}, off by {seen.error:.3g}"
        errors = (seen.error, calls.attention_error) if calls.attention_rows else (seen.error,)
        of_step = f"attention of the {calls.attention_rows} rows of a training step by {calls.attention_error:.3g}"
        detail += f"; {of_step if calls.attention_rows else 'no attention of a training step was compared'}"
        finer = []
        if seen.fp32_error is not None:
            detail += f"; in fp32 arithmetic {seen.fp32_error_at} by {seen.fp32_error:.3g}"
            finer.append((seen.fp32_error, self.max_error_fp32))
        if seen.product_gain_error is not None:
            detail += f"; the product of {seen.product_gain_error_at} by {seen.product_gain_error:.2g} of its weight's"
            finer.append((seen.product_gain_error, self.max_product_gain))
        if seen.gain_error is not None:
            ulps = seen.gain_error / EPSILON[trace.one(Setup).precision]
            detail += f"; the gain of {seen.gain_error_at} off by {ulps:.2g} units of the last place"
            detail += "" if ulps <= self.max_gain_ulps else ": the norm is not computed in fp32"
            finer.append((ulps, self.max_gain_ulps))
        found = self.at_most(worst_of(errors, key=float), limit, detail, *finer, compared=seen.relations)
        if not found.passed or seen.extreme_error is None or seen.extreme_error <= limit:
            return found
        detail = f"{seen.extreme_error_at} is off by {seen.extreme_error:.3g}; {detail}"
        return self.at_most(seen.extreme_error, limit, detail, meant=NEVER_MET, causes=[OVERFLOWS])


class RowsIsolated(NumericCheck):
    """Logits do not depend on later tokens, on padding, or on other rows of the batch."""

    needs = frozenset({Premise.CAUSAL_LM, Premise.ARCHITECTURE_KNOWN})
    meaning = "The attention mask is not causal. Padding is attended to. Packed rows attend to each other."
    remedy = "Pass the attention mask. Reset positions and attention at row borders. Use is_causal."

    max_error_fp32: float = 1e-4  # 0.0 measured
    max_error_16bit: float = 3e-2

    def judge(self, trace: Trace) -> Finding:
        seen = trace.one(ForwardPaths)
        values = {
            "a later token": seen.future_token_difference,
            "padding": seen.padding_difference,
            "another row": seen.other_row_difference,
        }
        worst = worst_of(values, key=lambda key: values[key])
        detail = f"{worst} changes a row's logits by {values[worst]:.3g} of the largest logit"
        return self.at_most(values[worst], self.limit(trace), detail)


class FirstLossBelowUniform(Check):
    """The loss before training is well under ln(vocabulary), the loss of a uniform guess.

    Unfamiliar rows, such as emoji or codes, may exceed it. A plain English row must then stay under it.
    """

    needs = frozenset({"suite_rows", Premise.PRETRAINED})
    meaning = "The weights were never loaded. The tokenizer belongs to another model. The labels are wrong."
    remedy = "Fix base_matches_file and tokens_match_template first if either failed. Generate a sentence and read it."

    max_share: float = 0.8
    """Share of ln V. SmolLM2-135M starts at 0.39 of it on the shipped data."""

    def judge(self, trace: Trace) -> Finding:
        begun = [evaluation for evaluation in trace.all(Evaluation) if evaluation.step == 0]
        first = recorded(begun, "no evaluation ran before the first step")[0]
        uniform = math.log(trace.run.architecture.vocab_size)
        limit = self.max_share * uniform
        detail = f"{first.loss:.3f} nats per token before training; a uniform guess has ln V = {uniform:.3f}"
        if first.unfamiliar(limit):
            detail += f", and a plain English row {first.plain_loss:.3f}: the rows are unfamiliar to the model"
            return self.found(True, detail, measured=first.plain_loss, limit=limit)
        return self.at_most(first.loss, limit, detail)
