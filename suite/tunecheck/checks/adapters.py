"""LoRA adapters: their start, their arithmetic, their dropout, and that they are part of the forward pass."""

import math

from tunecheck.core.check import Check, NumericCheck, holding, recorded, required, some
from tunecheck.core.evidence import AdapterDropout, AdapterEffect, AdapterStart, Census, OwnLoss, Setup, Step, Window
from tunecheck.core.finding import Finding
from tunecheck.core.premises import Premise
from tunecheck.core.snapshot import LoraSnapshot
from tunecheck.core.trace import Trace


class AdaptersStartNeutral(NumericCheck):
    """Before training, every adapted linear returns its base layer's output, even with dropout active.

    The same holds for the whole model, including tokens and modules that are trained along with the adapters.
    """

    needs = frozenset({"adapters", Premise.CAUSAL_LM, Premise.ADAPTERS_ENUMERATED, Premise.ADAPTERS_FRESH})
    meaning = "The adapter's initialisation changes the function. Or dropout applies to the base, too."
    remedy = "Use peft's default initialisation (B = 0), or subtract the adapter from the base as PiSSA does."

    max_error_fp32: float = 1e-6  # B = 0 adds exact zeros: 0.0 measured
    max_error_16bit: float = 1e-6
    max_error_16bit_dora: float = 5e-2
    """DoRA multiplies by m / ||W||, which rounds to 1 within 16 bit. Each linear is off by its last place (4e-3
    measured), and the logits accumulate all of these errors."""

    def judge(self, trace: Trace) -> Finding:
        seen, limit = _start(trace), self.limit(trace)
        if trace.one(Setup).precision != "fp32" and _lora(trace).use_dora:
            limit = self.max_error_16bit_dora
        detail = "largest difference of an adapted linear from its base, over the base's largest output"
        if seen.start_difference <= limit and not seen.base_difference <= limit:
            detail = "every adapted linear returns the output of its base, but the adapters change the logits: "
            detail += "something trained beside them changes the model from the start"
        return self.at_most(seen.start_difference, limit, detail, (seen.base_difference, limit))


class AdaptersStartRandom(Check):
    """Every A is drawn from the run's seed, uniform within 1 / sqrt(inputs), and has full rank.

    B = 0 hides mistakes in A at the start. The check cannot tell whether another seed would give another A: torch's
    seed does not show the seed of a private generator.
    """

    needs = frozenset({"adapters", Premise.CAUSAL_LM, Premise.ADAPTERS_ENUMERATED, Premise.ADAPTERS_FRESH})
    convention = "adapters may begin with other numbers, as some methods want"
    meaning = """The seed is reset for each adapter, or for parts of one. A has another scale. The seed is never set.
    The first updates are then alike, of lower rank, independent of the seed, or of the wrong size."""
    remedy = "Leave initialisation to peft. Seed once, before creating the adapters."

    max_ratio: float = 1.5
    """Ratio of A's spread to its expected spread, in either direction. 204 healthy runs stay within 1.07, also at rank
    1 with 128 inputs."""

    def judge(self, trace: Trace) -> Finding:
        seen = _start(trace)
        smallest, largest = seen.a_sizes["smallest"], seen.a_sizes["largest"]
        ratio, wanted = max(largest, 1 / smallest if smallest else math.inf), trace.run.training.seed
        reseeded = seen.seed != wanted and trace.holds(Premise.SEED_DECLARED)
        wrong = {
            f"torch was seeded with {seen.seed}, configured {wanted}": reseeded,
            f"{len(seen.a_repeated)} A equal to another A: {some(seen.a_repeated)}": seen.a_repeated,
            f"{len(seen.a_dependent)} A of less than full rank: {some(seen.a_dependent)}": seen.a_dependent,
        }
        problems, scale = holding(wrong), [] if ratio <= self.max_ratio else ["A has a wrong scale"]
        detail = "; ".join([*scale, *problems, f"A is {smallest:.3g} to {largest:.3g} times its expected size"])
        return self.at_most(ratio, self.max_ratio, detail, problems=problems)


class AdapterAlgebra(NumericCheck):
    """With a random B, every adapted linear adds s B A x (or follows DoRA's formula), and the logits change.

    The gradients of the adapter's tensors follow the formula too. So does the gradient that the adapter passes to the
    layers before it.
    """

    needs = frozenset({"adapters", Premise.CAUSAL_LM, Premise.ADAPTERS_ENUMERATED, Premise.BASE_PLAIN})
    convention = "a variant of LoRA may compute another formula"
    meaning = """The scaling is not alpha/r. The factors are transposed. Dropout is active though configured as 0. The
    adapters are not part of the forward pass."""
    remedy = "Compare the measured ratio with alpha, r and alpha/r. Check that the training calls the wrapped model."

    max_error_fp32: float = 1e-4  # 6e-7 measured
    max_error_16bit: float = 5e-2

    def judge(self, trace: Trace) -> Finding:
        seen, limit, expected = _start(trace), self.limit(trace), _adapted_linears(trace)
        lora = _lora(trace)
        scale = "alpha/sqrt(r)" if lora.use_rslora else "alpha/r"
        formula = f"({scale}) B A x"
        if lora.use_dora:
            formula = f"(m/n - 1) W x + m/n {formula}, n the row norms of W + ({scale}) B A"
        wrong = {
            f"{seen.algebra_error_at} is off by {seen.algebra_error:.3g} of {formula}": not seen.algebra_error <= limit,
            f"{seen.modules} adapted linears found, {expected} expected": seen.modules != expected,
            "the logits do not change with the adapters: they are not applied": not seen.logit_change > 0,
        }
        problems = holding(wrong)
        detail = "; ".join(problems) or f"{seen.modules} adapted linears add {formula}"
        return self.at_most(seen.algebra_error, limit, detail, problems=problems)


def _start(trace: Trace) -> AdapterStart:
    """Return the adapters before training. Raises NotApplicable where only embeddings have any."""
    seen = trace.one(AdapterStart)
    required(seen.modules or _adapted_linears(trace), "no linear has an adapter")
    return seen


def _adapted_linears(trace: Trace) -> int:
    """Return the linears that are declared to have an adapter; embeddings may have some, too."""
    declared = (*trace.one(Census).expected_trainable, *trace.run.rests)
    return sum(".lora_B." in name and name.endswith(".weight") for name in declared)


def _lora(trace: Trace) -> LoraSnapshot:
    return recorded(trace.run.lora, "the run has no adapters")


class DropoutVaries(Check):
    """Every forward pass with dropout starts from a new random state, and adapters drop the configured share.

    Each element of each token is dropped independently, and the rest is scaled by 1 / (1 - p). The base layer receives
    the full input. The shares are judged for plain LoRA without offloaded weights.
    """

    needs = frozenset({"dropout", Premise.CAUSAL_LM})
    meaning = """The loop resets a seed. Dropout draws nothing, or with another probability. Dropout sits at another
    place, or draws one mask for many tokens. The kept elements are not scaled."""
    remedy = "Seed once, before building the model. Check train mode. Print the adapter's dropout of a tensor of ones."

    max_deviations: float = 6.0
    """Deviation of a count, in standard deviations of independent draws. Healthy runs exceed it once in 5e8."""

    def judge(self, trace: Trace) -> Finding:
        states = [window.random_state for window in trace.all(Window)]
        drawn = [state for seen in trace.records(OwnLoss) for state in seen.random_states]
        repeated, again, lora = len(states) - len(set(states)), len(drawn) - len(set(drawn)), _lora(trace)
        problems = []
        if trace.run.training.offloads_parameters or lora.use_dora:
            required(len(states) >= 2, "only one step: its random state cannot be compared with another")
        else:
            required(trace.one(AdapterDropout).pairs, "no adapter calls its two factors as modules")
            problems = self._problems(lora.dropout, trace.one(AdapterDropout))
        detail = f"{len(states)} steps, {repeated} of them with the random state of an earlier step"
        detail += f"; {len(drawn)} forward passes, {again} of them likewise" if drawn else ""
        detail += "".join(f"; {problem}" for problem in problems)
        return self.at_most(repeated + again + len(problems), 0, detail)

    def _problems(self, share: float, seen: AdapterDropout) -> list[str]:
        """Return what is wrong with the elements that one forward pass dropped, where this share is configured."""
        problems = []
        if seen.odd:
            problems.append(f"{seen.odd} of {seen.pairs} pairs do not match kept elements scaled by 1/(1-p)")
        elif self._far(seen.dropped, 2 * seen.pairs, share):
            problems.append(f"{seen.dropped / (2 * seen.pairs):.1%} of the input dropped, {share:.0%} configured")
        elif self._far(seen.alone, seen.pairs, 2 * share * (1 - share)):
            problems.append("elements are not dropped independently: dropout does not apply to the input of A")
        same = ((1 - share) ** 2 + share**2) ** 2
        for among, (count, agreeing) in (("tokens", seen.neighbours), ("adapters", seen.siblings)):
            if self._far(agreeing, count, same):
                problems.append(f"in {agreeing / count:.0%} of the positions two {among} agree, {same:.0%} by chance")
        if not seen.base_untouched:
            problems.append("the base layer does not receive the input of the adapted linear")
        return problems

    def _far(self, count: int, draws: int, share: float) -> bool:
        """Return whether a count of independent draws is further from its mean than chance explains."""
        return not abs(count - draws * share) <= self.max_deviations * math.sqrt(draws * share * (1 - share))


class AdaptersApplied(Check):
    """After training, the logits with adapters on and off differ.

    After training at a tiny rate, the check enlarges the adapter first.
    """

    needs = frozenset({"adapters", Premise.CAUSAL_LM})
    premises_to_fail = frozenset({Premise.GRADIENT_DUE})
    meaning = "The forward pass does not apply the trained adapters, or the adapters were never trained."
    remedy = "Check that the training calls the wrapped model. Check that no adapter is disabled or merged."

    min_difference: float = 0.0
    """The difference must exceed this. An untrained or disabled adapter adds exact zeros. The size depends on rate and
    steps: 1.4e-2 after ten steps of SmolLM2-135M at 2e-4."""

    def judge(self, trace: Trace) -> Finding:
        trace.all(Step)  # raises where no step was trained: B is still zero
        seen = trace.one(AdapterEffect)
        difference, detail = seen.difference, "largest logit difference, adapters on and off, over the largest logit"
        if difference == 0 and seen.enlarged_difference is not None:
            difference, detail = seen.enlarged_difference, f"{detail}: 0; with every B multiplied by 4096"
        limit = f"above {self.min_difference:g}"
        return self.found(difference > self.min_difference, detail, measured=difference, limit=limit)
