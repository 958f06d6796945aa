"""LoRA adapters: their start, their arithmetic, their dropout, and that they are part of the forward pass."""

import math

from tunecheck.core.check import Check, NumericCheck, some
from tunecheck.core.errors import MissingEvidence
from tunecheck.core.evidence import AdapterDropout, AdapterEffect, AdapterStart, Census, OwnLoss, Setup, Window
from tunecheck.core.finding import Finding
from tunecheck.core.premises import Premise
from tunecheck.core.snapshot import LoraSnapshot
from tunecheck.core.trace import Trace

NO_LINEARS = "no linear has an adapter"


class AdaptersStartNeutral(NumericCheck):
    """Before training, every adapted linear gives what its base gives, in train mode with its dropout too.

    So does the whole model: of tokens or modules that learn beside the adapters, too.
    """

    premises = frozenset({Premise.CAUSAL_LM, Premise.ADAPTERS_ENUMERATED, Premise.ADAPTERS_FRESH})
    applies_to = frozenset({"adapters"})
    meaning = (
        "the adapter's initialisation changes the function: training starts from another model than the base; or "
        "dropout falls on the base too"
    )
    remedy = "use peft's default initialisation (B = 0), or subtract the adapter from the base as PiSSA does"

    max_error_fp32: float = 1e-6  # B = 0 adds exact zeros: 0.0 measured
    max_error_16bit: float = 1e-6
    max_error_16bit_dora: float = 5e-2
    """DoRA multiplies by m / ||W||, which is 1 rounded to 16 bit: each linear is off by its last place (4e-3 measured),
    the logits by those of all."""

    def judge(self, trace: Trace) -> Finding:
        seen, limit = trace.one(AdapterStart), self.limit(trace)
        if not seen.modules and not _adapted_linears(trace):
            return self.unjudged(NO_LINEARS, expected=True)
        if trace.one(Setup).precision != "fp32" and _lora(trace).use_dora:
            limit = self.max_error_16bit_dora
        of_linears, of_logits = seen.start_difference, seen.base_difference
        detail = "largest difference of an adapted linear from its base, over the base's largest output"
        if not of_linears <= limit or of_logits <= limit:
            return self.found(of_linears <= limit, detail, measured=of_linears, limit=limit)
        detail = "the adapted linears give what their base gives, and yet the logits with the adapters are not those "
        detail += "without: what learns beside them changes the model from its start"
        return self.found(False, detail, measured=of_logits, limit=limit)


class AdaptersStartRandom(Check):
    """Every A is drawn anew under the run's seed, uniform within 1 / sqrt(inputs) and of full rank; B = 0 hides it.

    That another seed would have given another A is not seen: of a generator of its own torch's seed says nothing.
    """

    premises = frozenset({Premise.CAUSAL_LM, Premise.ADAPTERS_ENUMERATED, Premise.ADAPTERS_FRESH})
    applies_to = frozenset({"adapters"})
    meaning = (
        "the seed is set again for every adapter or part of one, or never, or A is initialised at another scale: the "
        "first steps are then equal, of a smaller rank, those of any other seed, too long or too short"
    )
    remedy = "leave initialisation to peft, and seed once, before the adapters are made"

    max_ratio: float = 1.5
    """Of A's spread to what it should be, either way: within 1.07 in 204 healthy runs, at rank 1 and 128 inputs too."""

    def judge(self, trace: Trace) -> Finding:
        seen = trace.one(AdapterStart)
        if not seen.modules and not _adapted_linears(trace):
            return self.unjudged(NO_LINEARS, expected=True)
        smallest, largest = seen.a_sizes["smallest"], seen.a_sizes["largest"]
        ratio, problems = max(largest, 1 / smallest if smallest else math.inf), []
        # a script may seed for its adapters and again for its rows; which of both is declared nobody knows
        if seen.seed != (wanted := trace.run.training.seed) and "watched" not in trace.run.features:
            problems.append(f"torch was seeded with {seen.seed}, configured {wanted}")
        if seen.a_repeated:
            problems.append(f"{len(seen.a_repeated)} A repeat another one: {some(seen.a_repeated)}")
        if seen.a_dependent:
            problems.append(f"{len(seen.a_dependent)} A of less than full rank: {some(seen.a_dependent)}")
        told = [*problems] if (within := ratio <= self.max_ratio) else ["A is not drawn at its size", *problems]
        detail = f"A is {smallest:.3g} to {largest:.3g} times as large as it should be"
        detail = "; ".join([*told, detail])
        return self.found(within, detail, measured=ratio, limit=self.max_ratio, problems=problems)


class AdapterAlgebra(NumericCheck):
    """With a random B, every adapted linear follows its formula, s B A x or DoRA's, and the model's logits change.

    So do its gradients by the adapter's tensors, and what of the gradient the adapter passes on to the layers below.
    """

    premises = frozenset({Premise.CAUSAL_LM, Premise.ADAPTERS_ENUMERATED, Premise.BASE_PLAIN})
    applies_to = frozenset({"adapters"})
    meaning = (
        "the scaling is not alpha/r, factors are transposed, dropout is active though 0, or the adapters are not part "
        "of the forward pass"
    )
    remedy = (
        "compare the measured ratio with alpha, r and alpha/r; check that the wrapped model is the one that is called"
    )

    max_error_fp32: float = 1e-4  # 6e-7 measured
    max_error_16bit: float = 5e-2

    def judge(self, trace: Trace) -> Finding:
        seen, limit = trace.one(AdapterStart), self.limit(trace)
        expected = _adapted_linears(trace)
        if not seen.modules and not expected:
            return self.unjudged(NO_LINEARS, expected=True)
        formula = _formula(_lora(trace))
        problems = []
        if not (within := seen.algebra_error <= limit):
            problems.append(f"{seen.algebra_error_at} is off by {seen.algebra_error:.3g} of {formula}")
        if seen.modules != expected:
            problems.append(f"{seen.modules} adapted linears found, {expected} expected")
        if not seen.logit_change > 0:
            problems.append("the logits do not change with the adapters: they are not applied")
        detail = "; ".join(problems) or f"{seen.modules} adapted linears add {formula}"
        return self.found(within, detail, measured=seen.algebra_error, limit=limit, problems=problems)


def _adapted_linears(trace: Trace) -> int:
    """Return the linears that are declared to have an adapter; embeddings may have some, too."""
    declared = (*trace.one(Census).expected_trainable, *trace.run.rests)
    return sum(".lora_B." in name and name.endswith(".weight") for name in declared)


def _lora(trace: Trace) -> LoraSnapshot:
    """Return the adapters' settings. Raises MissingEvidence where the run has none."""
    if (lora := trace.run.lora) is None:
        raise MissingEvidence("the run has no adapters")
    return lora


def _formula(lora: LoraSnapshot) -> str:
    """Return what an adapter of these settings adds to its linear's output."""
    scale = "alpha/sqrt(r)" if lora.use_rslora else "alpha/r"
    if not lora.use_dora:
        return f"({scale}) B A x"
    return f"(m/n - 1) W x + m/n ({scale}) B A x, n the row norms of W + ({scale}) B A"


class DropoutVaries(Check):
    """With dropout every forward pass begins with another random state, and adapters drop the configured share.

    What they keep is divided by one less that share, each element of each token falls by itself, and the base is given
    all of them: judged for plain LoRA without offloaded weights.
    """

    applies_to = frozenset({"dropout"})
    meaning = (
        "a seed is set again inside the loop, dropout draws nothing, with another probability, in another place or "
        "once for many, or what it keeps is not scaled"
    )
    remedy = (
        "seed once, before the model is built; check that the model is in train mode; call the adapter's dropout alone "
        "on a tensor of ones"
    )

    max_deviations: float = 6.0
    """Of a count, in standard deviations of independent draws: once in 5e8 runs."""

    def judge(self, trace: Trace) -> Finding:
        states = [window.random_state for window in trace.all(Window)]
        drawn = [state for seen in trace.main.all(OwnLoss) for state in seen.random_states]
        repeated, again, lora = len(states) - len(set(states)), len(drawn) - len(set(drawn)), _lora(trace)
        visible = not (trace.run.training.offloads_parameters or lora.use_dora)
        dropped = trace.one(AdapterDropout) if visible else None
        if dropped is not None and not dropped.pairs:
            return self.unjudged("every adapter is so wide that no sum tells which element is missing", expected=True)
        if dropped is None and len(states) < 2:
            return self.unjudged("one step, whose random state can repeat no other", expected=True)
        problems = self._problems(lora.dropout, dropped) if dropped else []
        detail = f"{len(states)} steps, {repeated} of them with a random state that was there before"
        detail += f"; {len(drawn)} forward passes, {again} of them likewise" if drawn else ""
        repeated += again
        detail += "".join(f"; {problem}" for problem in problems)
        return self.found(repeated == 0 and not problems, detail, measured=repeated + len(problems), limit=0)

    def _problems(self, share: float, seen: AdapterDropout) -> list[str]:
        """Return what is wrong with the elements that one forward pass dropped, where this share is configured."""
        problems = []
        if seen.odd:
            problems.append(f"{seen.odd} of {seen.pairs} sums are not those of elements kept and scaled by 1/(1-p)")
        elif self._far(seen.dropped, 2 * seen.pairs, share):
            problems.append(f"{seen.dropped / (2 * seen.pairs):.1%} of the input dropped, {share:.0%} configured")
        elif self._far(seen.alone, seen.pairs, 2 * share * (1 - share)):
            problems.append("elements do not fall one by one: dropout is not where the input goes into A")
        same = ((1 - share) ** 2 + share**2) ** 2
        for among, (count, agreeing) in (("tokens", seen.neighbours), ("adapters", seen.siblings)):
            if self._far(agreeing, count, same):
                problems.append(
                    f"in {agreeing / count:.0%} of the places two {among} lose the same, {same:.0%} by chance"
                )
        if not seen.base_untouched:
            problems.append("the base is given something else than the adapted linear")
        return problems

    def _far(self, count: int, draws: int, share: float) -> bool:
        """Return whether a count of independent draws is further from its mean than chance explains."""
        return not abs(count - draws * share) <= self.max_deviations * math.sqrt(draws * share * (1 - share))


class AdaptersApplied(Check):
    """After training, logits with adapters on and off differ, those of an enlarged adapter where the rate was tiny."""

    applies_to = frozenset({"adapters"})
    meaning = "the adapters were trained but are not applied in the forward pass, or were never trained"
    remedy = "check that the wrapped model is called and that no adapter is disabled or merged away"

    min_difference: float = 0.0
    """To be exceeded. An adapter that was never trained or is switched off adds exact zeros, so anything will do: how
    much it is depends on rate and steps (1.4e-2 after ten steps of SmolLM2-135M at 2e-4)."""

    def judge(self, trace: Trace) -> Finding:
        seen = trace.one(AdapterEffect)
        difference, detail = seen.difference, "largest logit difference, adapters on and off, over the largest logit"
        if difference == 0 and seen.enlarged_difference is not None:
            difference, detail = seen.enlarged_difference, f"{detail}: 0, and this with every B 4096 times as large"
        limit = f"above {self.min_difference:g}"
        return self.found(difference > self.min_difference, detail, measured=difference, limit=limit)
