"""Habits of nearly every training. Breaking one is a question to whoever wrote the script, no proven mistake."""

from collections import Counter

from tunecheck.core.check import Check
from tunecheck.core.evidence import CallOrder, EvaluationRows, ScheduleTaken, StepInputs, TrainingState
from tunecheck.core.finding import Finding
from tunecheck.core.trace import Trace


class BatchesChange(Check):
    """A model is not given the same batch in every step. Rows of language models are compared by rows_come_once."""

    applies_to = frozenset({"unknown_rows"})
    premises = frozenset()
    convention = "one batch is overfitted on purpose, or the whole data set is one batch"
    meaning = "the loader's iterator is made again in each step, or the batch is read before the loop"
    remedy = "make the iterator once an epoch, and take the next batch in each step"

    min_steps: int = 3
    """Two may be equal by chance, in a data set of a few batches."""

    def judge(self, trace: Trace) -> Finding:
        batches = [digest for seen in trace.all(StepInputs) for digest in seen.digests]
        steps = len(trace.all(StepInputs))
        if steps < self.min_steps:
            return self.unjudged(f"{steps} steps say nothing yet", expected=True)
        different = len(set(batches))
        detail = f"{different} different of {len(batches)} micro-batches in {steps} steps"
        return self.found(different > 1, detail, measured=different, limit="above 1", compared=len(batches))


class RandomnessVaries(Check):
    """Steps that draw random numbers begin with different random states, so that each drops something else."""

    applies_to = frozenset({"watched"})
    premises = frozenset()
    convention = "a comparison of steps, or of models, under the same noise sets the seed again"
    meaning = (
        "a seed is set in the loop, in the model or in a callback: dropout masks, noise and samples are the same in "
        "every step"
    )
    remedy = "set the seed once, before the model is built; look for manual_seed and set_seed"

    max_alike: int = 2
    """Steps that begin with the same state."""

    def judge(self, trace: Trace) -> Finding:
        if "dropout" in trace.run.features:
            return self.unjudged("dropout_varies judges the random states of adapters that drop", expected=True)
        drawing = {seen.step: seen.random_state for seen in trace.all(TrainingState) if seen.random_state}
        states = Counter(drawing.values())
        if states.total() <= self.max_alike:
            return self.unjudged(f"{states.total()} steps drew random numbers", expected=True)
        alike = max(states.values())
        detail = f"{alike} of {states.total()} steps that draw random numbers begin with the same random state"
        return self.found(alike <= self.max_alike, detail, measured=alike, limit=self.max_alike)


class ScheduleEnds(Check):
    """A schedule and its warm-up are over with the training, so that the rate rises to its peak and falls again."""

    applies_to = frozenset({"watched"})
    premises = frozenset()
    convention = "a trial of a few steps, and a first part of a longer training, leave a schedule early"
    meaning = (
        "a schedule is made for micro-batches, or for all epochs of all processes, and stepped with the optimizer; "
        "a warm-up in steps was copied from a larger training: the rate hardly falls, or hardly rises"
    )
    remedy = "divide the loader's length by the accumulation steps; give the warm-up as a ratio"

    max_ratio: float = 2.5
    """Steps of the schedule over those that are taken of it: more than the accumulation over two."""
    min_steps: int = 4
    """Steps of the optimizer below which a training is a trial."""

    def judge(self, trace: Trace) -> Finding:
        seen = [seen for seen in trace.main.all(ScheduleTaken) if seen.taken and seen.optimizer_steps >= self.min_steps]
        if not seen:
            return self.unjudged("no schedule says for how many steps it was made, or none was taken", expected=True)
        worst = max(seen, key=lambda seen: seen.made_for / seen.taken)
        ratio = worst.made_for / worst.taken
        rising = [f"warms up for {one.warmup} steps of {one.taken}" for one in seen if one.warmup >= one.taken]
        detail = f"a schedule of {worst.made_for} steps, {worst.taken} of which are taken: {ratio:.1f} times as many"
        detail = "; ".join([detail] * bool(worst.made_for) + rising) or f"a warm-up of {worst.warmup} steps"
        return self.found(ratio <= self.max_ratio, detail, measured=ratio, limit=self.max_ratio, problems=rising)


class ClippingLeavesGradients(Check):
    """Clipping leaves something of the gradients, in one step at least."""

    applies_to = frozenset({"watched"})
    premises = frozenset()
    convention = "an optimizer that divides by the gradients' size takes the same step of smaller ones"
    meaning = (
        "max_grad_norm is far below the norm of every step: plain SGD stands still, and Adam's epsilon is no longer "
        "small beside its averages; or the loss is a sum where its mean is meant"
    )
    remedy = "print the norm that clip_grad_norm_ returns; clip at about the norm of usual steps"

    min_scale: float = 1e-3
    """The least that the mildest clip leaves, over the norm before it."""
    min_steps: int = 3
    """Steps that are clipped at least."""

    def judge(self, trace: Trace) -> Finding:
        scales = [seen.clip_scale for seen in trace.all(CallOrder) if seen.clip_scale is not None]
        if len(scales) < self.min_steps:
            return self.unjudged(f"gradients were clipped to a limit in {len(scales)} steps", expected=True)
        largest = max(scales)
        detail = f"clipping leaves at most {largest:.2g} of the gradients' norm in {len(scales)} steps"
        return self.found(largest >= self.min_scale, detail, measured=largest, limit=self.min_scale)


class EvaluationRowsUnseen(Check):
    """Rows of the evaluation are not among those that are trained on."""

    applies_to = frozenset({"watched"})
    premises = frozenset()
    convention = "an evaluation may be meant to show how well the rows of the training are learned"
    meaning = (
        "both data sets are the same, or the evaluation's is a part that nobody took out of the training's: its loss "
        "falls while the model learns by heart"
    )
    remedy = "split once (train_test_split), before anything is repeated or mixed; drop equal rows"

    max_share: float = 0.1
    """Of the evaluation's rows that were looked up: short texts may well come twice in a data set."""
    min_rows: int = 4
    """Rows that are trained on besides, below which it may be chance."""

    def judge(self, trace: Trace) -> Finding:
        if not trace.main.all(EvaluationRows):
            return self.unjudged("no data set of an evaluation is known whose rows are tokens", expected=True)
        seen = trace.one(EvaluationRows)
        share = seen.among / seen.rows
        detail = f"{seen.among} of {seen.rows} rows of the evaluation are among {seen.trained} of the training"
        fits = share <= self.max_share or seen.among < self.min_rows
        return self.found(fits, detail, measured=share, limit=self.max_share, compared=seen.rows)
