"""The optimizer: which tensors it holds, its rate, its steps and the updates that it makes."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter

from tunecheck.core import evidence
from tunecheck.core.check import Check, NumericCheck, recorded, required, said_once, some, unwitnessed, worst_of
from tunecheck.core.errors import MissingEvidence, NotApplicable
from tunecheck.core.finding import Finding
from tunecheck.core.optimization import decays, learning_rate
from tunecheck.core.premises import Premise
from tunecheck.core.text import counted
from tunecheck.core.trace import ADAMW, Trace

OUTDATED = "The optimizer was built before the model was wrapped, loaded or resized, and holds stale tensors."
LEFT_OUT = "Its parameter list is incomplete: a filter drops some, or a generator was already exhausted."
MOST_REST = "most of a model may rest under a new head, or beside factors of LoRA, without being frozen"
TWO_GROUPS = "Two parameter groups list the same tensor."
OTHER_SETTINGS = "The optimizer is not the declared one: other code builds it, with other settings."


class OptimizerCoverage(Check):
    """The optimizer holds every trainable tensor exactly once, by identity, and nothing else.

    A script's own optimizer may also hold frozen tensors, which it skips without a gradient, and a loss's parameters.
    """

    needs = frozenset({Premise.GROUPS_DECLARED})
    meaning = f"{OUTDATED} {LEFT_OUT} {TWO_GROUPS} {OTHER_SETTINGS}"
    remedy = "Build the optimizer last, from the parameters of the trained model."

    def judge(self, trace: Trace) -> Finding:
        problems = {problem: OTHER_SETTINGS} if (problem := other_optimizer(trace)) else {}
        problems |= said_once((c.when, *wrong) for c in trace.all(evidence.Census) for wrong in _held_wrongly(trace, c))
        held = len(trace.one(evidence.Census).optimized)
        meant = MOST_REST if trace.left_out and {*problems.values()} == {LEFT_OUT} else ""
        return self.unless(problems, f"all {held} trainable tensors held once", compared=held, meant=meant)


def _held_wrongly(trace: Trace, census: evidence.Census) -> Iterator[tuple[str, str]]:
    training, declared = trace.run.training, trace.holds(Premise.SETTINGS_DECLARED)
    held, wanted = Counter(census.optimized), set(census.trainable)
    learnt_beside = sum(seen.tensors for seen in trace.records(evidence.LearntBeside))
    foreign, missing = max(held.pop("?", 0) - learnt_beside, 0), sorted(wanted - held.keys())
    # a script may also hand over what its loss holds frozen: they take the place of none of the model's
    if foreign and (missing or trace.holds(Premise.OPTIMIZER_OF_TRAINED)):
        yield f"{foreign} tensors in the optimizer do not belong to the model", OUTDATED
    if missing and not declared:  # a part that the loss does not reach may well be left out
        missing = sorted(set(missing) - _without_gradient(trace))
    if missing:
        cause = LEFT_OUT if not foreign and wanted & held.keys() else OUTDATED
        yield f"{len(missing)} trainable tensors are not in the optimizer: {some(missing)}", cause
    # what has no gradient is passed over, and base_untouched sees to the rest
    if (extra := sorted(held.keys() - wanted)) and trace.holds(Premise.OPTIMIZER_OF_TRAINED):
        yield f"{len(extra)} frozen tensors are in the optimizer: {some(extra)}", ""
    if twice := sorted(name for name, times in held.items() if times > 1):
        yield f"held more than once: {some(twice)}", TWO_GROUPS
    if not declared:
        return
    apart = {name for name in census.trainable if not decays(name, training.weight_decay_on)}
    numbers = dict(census.weight_decays)
    if training.weight_decay and apart:
        numbers.pop("0.0", None)
        if differing := sorted(apart.symmetric_difference(census.undecayed)):
            words = "weight decay is configured for all but norms and biases, but differs in"
            yield f"{words} {some(differing)}", OTHER_SETTINGS
    if wrong := _other_numbers(numbers, (training.weight_decay,)):
        yield f"weight decay {some(wrong)}, configured {training.weight_decay}", OTHER_SETTINGS
    if census.optimizer_switches:
        yield f"switched on, but not configured: {some([*census.optimizer_switches])}", OTHER_SETTINGS
    adam = (training.adam_beta1, training.adam_beta2, training.adam_epsilon)
    # An optimizer that is no Adam has no such settings.
    uses_adam = trace.one(evidence.Setup).declared_optimizer == ADAMW and not other_optimizer(trace)
    if wrong := _other_numbers(census.adam_settings, adam) if uses_adam else []:
        yield f"betas and epsilon {some(wrong)}, configured {' '.join(map(str, adam))}", OTHER_SETTINGS


def _without_gradient(trace: Trace) -> set[str]:
    return set.intersection(*(set(seen.zero) for seen in trace.all(evidence.Gradients)))


def other_optimizer(trace: Trace) -> str:
    """Return which optimizer took the declared one's place, in a clause; empty where none did."""
    setup = trace.one(evidence.Setup)
    if not setup.optimizer or setup.declared_optimizer.lower() in setup.optimizer.lower():
        return ""
    return f"the optimizer is {setup.optimizer}, configured {setup.declared_optimizer}"


def _other_numbers(settings: Iterable[str], configured: tuple[float, ...]) -> list[str]:
    """Return the settings, numbers as text, whose values are not the configured ones: "0" is 0.0."""
    return sorted(text for text in settings if _numbers(text) != configured)


def _numbers(text: str) -> tuple[float, ...] | None:
    try:
        return tuple(map(float, text.split()))
    except ValueError:
        return None


class LearningRateTrace(Check):
    """The learning rate of every applied step equals the schedule's closed form.

    The first step after a resume may have its checkpoint's rate. If a training continues for more steps than planned,
    the new schedule starts after that step.
    """

    needs = frozenset({Premise.SCHEDULE_KNOWN})
    meaning = "The scheduler advances per micro-batch, per process, on skipped steps or never. A resume restarts it."
    remedy = "Call scheduler.step() once after each applied optimizer step."

    max_error: float = 1e-6
    """Difference over the peak rate. Both are float64 arithmetic."""

    def judge(self, trace: Trace) -> Finding:
        training, applied = trace.run.training, 0
        max_steps, warmup_steps = training.schedule_steps or training.max_steps, training.warmup_steps
        if warmup_steps is None:
            warmup_steps = math.ceil(training.warmup_ratio * max_steps)
        rates: list[tuple[float, evidence.Step, float]] = []
        for step in trace.steps:
            done = training.first_step + applied
            wanted = learning_rate(done, training.learning_rate, training.lr_scheduler, warmup_steps, max_steps)
            if not rates and step.learning_rate == training.resumed_rate:
                wanted = step.learning_rate
            rates.append((abs(step.learning_rate - wanted) / (training.learning_rate or 1.0), step, wanted))
            applied += step.applied
        error, step, wanted = worst_of(rates, key=lambda rate: rate[0])
        detail = f"step {step.step}: rate {step.learning_rate:.4g}, the schedule gives {wanted:.4g}"
        return self.at_most(error, self.max_error, detail)


NEVER_STEPS = "The loop computes gradients for an optimizer, but never calls its step()."
NEVER_LEARNS = "The loop steps an optimizer whose tensors are part of no loss."
LATER = "a further optimizer may be made for a later part of the training"
SAME_TENSORS = "By copy and paste, an optimizer holds the tensors of another one's model."
MADE_ANEW = "The loop creates the optimizer anew in each step, so its averages restart at 0."


class StepsApplied(Check):
    """The run takes every configured step, and applies nearly all of them at a rate above 0.

    Every further optimizer steps if its tensors receive gradients, and they receive gradients if it steps.
    """

    needs = frozenset()
    meaning = f"""The run ended early. The gradient scaler skips steps after fp16 overflow. The schedule ended before
    the training. {NEVER_STEPS} {NEVER_LEARNS} {MADE_ANEW} {SAME_TENSORS}"""
    remedy = "Use bf16. Check the gradient norms of skipped steps. Build the schedule for the steps of all epochs."

    max_skipped: int = 3
    """fp16's scaler starts high and may skip its first one to three steps."""
    max_without_rate: int = 2
    """Consecutive steps, after one with a rate. The rate may be 0 at the end of a schedule or at a restart."""
    min_steps_beside: int = 4
    """Steps after which a further optimizer is judged. Some step once every few steps of the model."""

    def judge(self, trace: Trace) -> Finding:
        beside = self._beside(trace)
        if beside and not trace.records(evidence.Step):  # nor is there one where the first one never stepped
            return self.unless(beside, "", meant=LATER)
        wanted, steps = trace.run.training.max_steps, trace.steps
        skipped = sum(not step.applied for step in steps)
        excused = set(trace.skipped)
        if not trace.holds(Premise.EVERY_STEP_LEARNS):
            excused |= {step.step for step in steps if step.gradient_norm == 0}
        if not trace.holds(Premise.UPDATE_RULE_KNOWN):  # an optimizer may warm up from 0 by a schedule of its own
            excused |= set(range(next((update.step for update in trace.all(evidence.Update) if update.moved), 0)))
        resting = [u.step for u in trace.all(evidence.Update) if not u.moved and not u.expected_learning_rate <= 0]
        unmoved = [step for step in resting if step not in excused]
        detail = f"{len(steps)} of {wanted} steps, {skipped} skipped by the scaler"
        detail += f"; steps {unmoved[:5]} count as applied, but changed no weight" if unmoved else ""
        counted = [step.step for step in steps] == list(range(len(steps)))
        problems: list[object] = [*unmoved, *([] if counted else ["another order"])]
        if len(idle := _without_rate(steps)) > self.max_without_rate:
            detail += f"; every group has rate 0 in steps {idle[:5]}, which change nothing"
            problems += idle
        recorded(trace.main.end is not None, f"the trace is truncated: {detail}")
        within = skipped <= self.max_skipped
        if within and not problems and not trace.main.finished:  # a crash is its own error; these steps were taken
            raise MissingEvidence(f"the training did not finish: {detail}")
        if trace.holds(Premise.STEPS_DECLARED):
            problems += range(abs(len(steps) - wanted))
        if within and not problems and beside:
            return self.unless(beside, "", meant=LATER)
        return self.found(within, detail, measured=skipped, limit=self.max_skipped, problems=problems)

    def _beside(self, trace: Trace) -> dict[str, str]:
        found = {}
        for seen in trace.records(evidence.OtherOptimizer):
            which = f"a further {seen.name} of {seen.tensors} tensors"
            if seen.unheld:
                found[f"{which} has the first one's, and {seen.unheld} with gradients have none"] = SAME_TENSORS
            elif seen.anew:
                found[f"{which} takes the first one's place from step {seen.model_steps} on"] = MADE_ANEW
            elif not seen.steps and self.min_steps_beside <= seen.waiting >= seen.model_steps - 1:
                how = f"they have gradients in {seen.waiting} of {seen.model_steps} steps"
                found[f"{which} never steps, though {how}"] = NEVER_STEPS
            elif self.min_steps_beside <= seen.steps == seen.without_gradient:
                found[f"{which} steps {seen.steps} times, each time without a gradient"] = NEVER_LEARNS
        return found


def _without_rate(steps: Sequence[evidence.Step]) -> list[int]:
    """Return the longest run of steps at a rate of 0 that follows one at another rate, as a warm-up's first do not."""
    runs = ([step.step for step in run] for without, run in groupby(steps, attrgetter("without_rate")) if without)
    return max((numbers for numbers in runs if numbers[0] != steps[0].step), key=len, default=[])


class UpdatesMatchAdamw(NumericCheck):
    """Each early step changes every tensor as closed-form AdamW would, with the schedule's rate, clipping and decay."""

    needs = frozenset(
        {Premise.GRADIENT_SUMMED, Premise.GRADIENT_WHOLE, Premise.CLIPPED_WHOLE, Premise.UPDATE_RULE_KNOWN}
    )
    meaning = """The learning rate is wrong or 0. Steps are skipped. Clipping runs at the wrong time. Moments are stale.
    The optimizer holds other tensors. 16-bit weights round updates away."""
    remedy = """Compare the rate and the moments in this finding. A moment error alone points to clipping or scaling, an
    update error alone to rate, decay or dtype."""

    max_error_fp32: float = 5e-3
    """2e-5 measured at the last steps, whose updates are smallest relative to the rounding of the weights."""
    max_moment_error_fp32: float = 5e-4
    """Error of the averages, sums without cancellation: 3e-7 measured. Moments kept in bf16 are off by 1e-3."""
    max_error_16bit: float = 5e-3
    """Adapters and averages are fp32 too, unless adapter_dtype is model: 3e-4 measured in 240 tiny bf16 runs."""
    max_error_16bit_weights: float = 0.3
    """Error with adapter_dtype: model in 16 bit, whose updates have the size of rounding: 0.08 measured."""
    max_length_error: float = 2e-4
    """Error of the length of all updates along the expected ones, which averages the rounding of elements. A rate
    rounded to bf16 is off by up to 4e-3. Not judged with 16-bit weights."""

    def judge(self, trace: Trace) -> Finding:
        updates = trace.all(evidence.Update)
        exact = not trace.trains_16bit_weights
        limit = self.limit(trace) if exact else self.max_error_16bit_weights
        moment_limit = self.max_moment_error_fp32 if exact else limit
        worst = worst_of(updates, key=lambda update: update.update_error)
        moments = worst_of(updates, key=lambda update: update.moment_error)
        update = f"step {worst.step}: {worst.worst_update} off by {worst.update_error:.3g} of its update"
        update += f" at rate {worst.expected_learning_rate:.3g}"
        averages = f"moments off by {moments.moment_error:.3g} at step {moments.step}"
        detail = "; ".join(filter(None, [other_optimizer(trace), update, averages]))
        finer = [(moments.moment_error, moment_limit)]
        if exact and (lengths := [(seen.length_error, seen.step) for seen in updates if seen.length_error is not None]):
            error, step = worst_of(lengths, key=lambda length: length[0])
            detail += f"; all updates together off by {error:.3g} of their length in step {step}"
            finer.append((error, self.max_length_error))
        if trace.run.training.max_grad_norm is not None and not any(update.clipped for update in updates):
            detail += "; no gradient exceeded max_grad_norm: clipping is not testable"
        wrong = sum(not seen.update_error <= limit for seen in updates)
        wrong += sum(not seen.moment_error <= moment_limit for seen in updates)
        meant = unwitnessed(wrong, 2 * len(updates), confirmed=trace.knows_model)
        return self.at_most(worst.update_error, limit, detail, *finer, meant=meant)


ROUNDED_AWAY = "an optimizer may accumulate rounded updates; the end of a schedule has such rates"
SAVES_MEMORY = "weights may be kept in 16 bit without a copy in fp32, to save memory"
STOPPED = "a part may be kept as it is by stop-gradient, as a target or a feature extractor is"
MONITORED = "a loss may be computed to be shown, or for a later phase of the training"
NOT_ADDED = "A loss is computed for these parts, but the loss of backward() leaves it out, or adds its item()."
UNREGISTERED = "Layers are in a plain list, not in a ModuleList. Or the loss has parameters of its own."
KEPT_APART = "a part may be kept out of the model's state on purpose, as a fixed critic is"
NO_GRADIENT = "A part of the model is outside the forward pass, runs under no_grad, or has its result detached."
NOT_CALLED = "The data lack a part's input, such as pictures. Or adapters also match linears outside the text model."
WITHOUT_PICTURES = "a model of pictures and text may be trained with text alone"
TWICE_CALLED = "By copy and paste, one part is called instead of another, such as a student as its own teacher."
SHARED = "a part may serve for both on purpose"
RATE_0 = "The learning rate is 0."
BOTH_0 = "Both factors of a product start at 0, so neither gets a gradient."
MAY_WAKE = "a part may begin to learn later, or be kept out by a factor of 0"
ROUNDS = "16-bit weights round small updates away."
CUT_OFF = {
    "hidden": ("no optimizer holds {parts} with gradients", KEPT_APART, UNREGISTERED),
    "replaced": ("nothing calls {parts}, and one like it is called twice on the same rows", SHARED, TWICE_CALLED),
    "tensors": ("{tensors} get no gradient, though the loss depends on them", STOPPED, NO_GRADIENT),
    "left_out": ("{tensors} get no gradient, though another loss depends on them", MONITORED, NOT_ADDED),
}
"""Field of CutOff to what it shows, who does so on purpose, and the usual cause."""


class TrainableMoved(Check):
    """Training changes every trainable tensor, and nearly all of its elements."""

    needs = frozenset()
    premises_to_fail = frozenset({Premise.GRADIENT_DUE})
    meaning = f"""The optimizer does not hold a part of the model. {NO_GRADIENT} {NOT_ADDED} {UNREGISTERED} {RATE_0}
    {TWICE_CALLED} {NOT_CALLED} {BOTH_0} {ROUNDS}"""
    remedy = """Fix trainable_set, optimizer_coverage and lora_gradient_schedule first if one failed. Search the forward
    pass for detach, .data and no_grad behind the named tensors. Keep trained weights in fp32."""

    min_share: float = 0.5
    """Smallest share of changed elements in any tensor; 1.0 in healthy LoRA runs. Judged if AdamW trains a causal
    language model: other optimizers may update by less than a last digit, other models have dead units."""
    min_share_16bit_weights: float = 0.1
    """The same with adapter_dtype: model in 16 bit, which loses small updates: 0.35 measured after four steps."""
    min_never_stepped: int = 8
    """Optimizer steps of a whole training whose schedule holds the rate at 0 and is never stepped."""
    min_share_of_16bit_steps: float = 0.5
    """Share of the elements with a gradient that the best step changes, in a watched training of 16-bit weights.
    Arithmetic gives 0.6 at a rate of 5e-5 for weights with a standard deviation of 0.02, 0.2 at 2e-5, 0.02 at 2e-6."""

    def judge(self, trace: Trace) -> Finding:
        limit = self.min_share_16bit_weights if trace.trains_16bit_weights else self.min_share
        if trace.why({Premise.CAUSAL_LM, Premise.UPDATE_RULE_KNOWN}):
            limit = 0.0
        seen = trace.one(evidence.Movement)
        rest = trace.unused.difference(seen.idle)  # which need not learn
        excused = rest | trace.left_out
        seen = replace(seen, unmoved=tuple(name for name in seen.unmoved if name not in excused))
        wanted = len(trace.one(evidence.Census).expected_trainable)
        moving = sum(step.applied and step.learning_rate > 0 for step in trace.steps)
        why = "step was applied with a learning rate above zero"
        if not moving:
            stepped = any("schedule" in seen.calls for seen in trace.all(evidence.CallOrder))
            taken = trace.records(evidence.ScheduleTaken)  # at the training's end
            never = any(one.never and one.optimizer_steps >= self.min_never_stepped for one in taken)
            waits = seen.rate_scheduled and not never and (not stepped or len(trace.steps) == 1)
            detail = f"no {why}, and the schedule is never stepped" if never else f"no {why}"
            detail += ", and the schedule was hardly stepped yet" if waits else ""
            meant = "a warm-up may begin at 0, and may be stepped once per epoch" if waits else ""
            return self.found(False, detail, measured=0.0, limit=limit, causes=[RATE_0], meant=meant)
        if moving == 1 and seen.unmoved and all(".lora_A." in name for name in seen.unmoved):
            raise NotApplicable(f"only one {why}; A has no gradient before B moves")
        problems = [f"{len(seen.unmoved)} of {wanted} did not move: {some(seen.unmoved)}"] if seen.unmoved else []
        if resting := sorted(set(seen.unmoved) & set(seen.without_rate)):
            problems.append(f"{len(resting)} of them are in a parameter group whose rate is 0 in every step")
        if not seen.smallest_moved_share >= limit:
            problems.append(f"only {seen.smallest_moved_share:.1%} of {seen.smallest_moved_share_at} moved")
        idle = f", {len(seen.idle)} had no gradient" if seen.idle else ""
        detail = "; ".join(problems) or f"{wanted - len(seen.idle)} of {wanted} tensors moved{idle}"
        if problems and set(seen.unmoved) <= set(seen.below_last_digit) and seen.smallest_moved_share >= limit:
            detail += ": the steps are less than the last digit of their weights"
            return self.at_most(len(seen.unmoved), 0, detail, meant=ROUNDED_AWAY, causes=[ROUNDS])
        rounds = trace.trains_16bit_weights and not trace.holds(Premise.DTYPES_DECLARED)
        if rounds and not resting and trace.records(evidence.Update):
            # whether the optimizer's steps are right is updates_match_adamw's question
            steps = [seen for seen in trace.all(evidence.Update) if seen.expected_learning_rate > 0]
            rates = [seen.expected_learning_rate for seen in steps]
            peak = max(trace.run.training.learning_rate, *rates, 0.0)
            shares = [(seen.moved_share, peak / rate) for seen, rate in zip(steps, rates, strict=True)]
            most = max((min(1.0, share * rise) for share, rise in shares if share is not None), default=1.0)
            if most < self.min_share_of_16bit_steps:
                detail = f"a step changes at most {most:.2%} of the elements, at rates of up to {peak:.2g}: "
                detail += "16-bit weights round the other updates away"
                limit = self.min_share_of_16bit_steps
                return self.found(False, detail, measured=most, limit=limit, meant=ROUNDED_AWAY, causes=[ROUNDS])
            detail += ": 16-bit weights round small updates away" if problems else ""
            rises = len(rates) > 1 and rates[-1] > rates[-2]  # in a warm-up larger steps are yet to come
            if seen.unmoved and not rises:
                return self.at_most(len(seen.unmoved), 0, detail, meant=SAVES_MEMORY, causes=[ROUNDS])
            required(not problems, f"{detail}; keep them in fp32")
        if seen.stuck_at_0 and not problems:
            detail = f"{len(seen.stuck_at_0)} of {wanted} trained tensors are matrices of 0, and their gradient is 0"
            detail += f" in each step: {some(seen.stuck_at_0)}"
            return self.at_most(len(seen.stuck_at_0), 0, detail, meant=MAY_WAKE, causes=[BOTH_0])
        if rest and not problems:
            tensors = counted(len(rest), "trained tensor")
            why = f"no pass calls {some([*seen.uncalled])}" if seen.uncalled else f"no loss uses {some(sorted(rest))}"
            detail = f"{why}, so that {tensors} learn nothing"
            return self.at_most(len(rest), 0, detail, meant=WITHOUT_PICTURES, causes=[NOT_CALLED])
        share = seen.smallest_moved_share
        parts = []
        try:
            parts = [] if problems else trace.whole(evidence.CutOff)
        except MissingEvidence as error:  # one look of several
            detail += f"; whether the loss depends on those could not be seen: {error}"
        for field, (words, meant, cause) in CUT_OFF.items():
            if names := [name for found in parts for name in getattr(found, field)]:
                told = words.format(parts=counted(len(names), "part"), tensors=f"{len(names)} trained tensors")
                return self.at_most(len(names), 0, f"{told}: {some(names)}", meant=meant, causes=[cause])
        causes = [RATE_0] if resting == sorted(seen.unmoved) else ()
        if seen.unmoved and _without_gradient(trace).issuperset(seen.unmoved):
            detail, causes = f"{detail}; no step gave them a gradient", [NO_GRADIENT]
        return self.found(
            share >= limit, detail, measured=share, limit=limit, problems=seen.unmoved, compared=wanted, causes=causes
        )
