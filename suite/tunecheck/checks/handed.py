"""What a training that is not ours is handed: the state that it loads, its workers' batches, the scores of its loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tunecheck.core.check import Check, some
from tunecheck.core.evidence import LossDivided, ScoresGiven, StateLoaded, WorkerBatches
from tunecheck.core.finding import Finding
from tunecheck.core.premises import Premise
from tunecheck.core.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDictKeysMatch(Check):
    """What a script loads into its model finds its place: of what does not, load_state_dict(strict=False) is silent."""

    premises: ClassVar[frozenset[Premise]] = frozenset()
    applies_to: ClassVar[frozenset[str]] = frozenset({"watched"})
    meaning: ClassVar[str] = (
        "the names of the state dict begin otherwise than the model's (module., _orig_mod., base_model.model., another "
        "part's name), and strict=False drops them: the model trains from the weights that it was made with"
    )
    remedy: ClassVar[str] = (
        "take the prefix off, load the inner model, or leave strict=False out; look at what load_state_dict returns"
    )

    def judge(self, trace: Trace) -> Finding:
        seen = trace.main.all(StateLoaded)
        if not seen:
            return self.unjudged("the script loads no state dict into what it trains", expected=True)
        problems = []
        for load in seen:
            if load.misnamed:
                problems.append(f"{load.into}: {len(load.misnamed)} tensors were left out: {some(load.misnamed, 2)}")
            elif not load.taken:
                problems.append(f"{load.into}: none of {load.offered} tensors was taken")
        detail = "; ".join(problems) or f"{sum(load.taken for load in seen)} tensors were taken"
        return self.found(not problems, detail, measured=len(problems), limit=0, compared=len(seen))


@dataclass(frozen=True, slots=True, kw_only=True)
class LossReceivesLogits(Check):
    """Cross entropies and log-softmaxes of the loss are computed of scores, not of probabilities."""

    premises: ClassVar[frozenset[Premise]] = frozenset()
    applies_to: ClassVar[frozenset[str]] = frozenset({"watched"})
    meaning: ClassVar[str] = (
        "the model or the loss takes a softmax or a sigmoid first, and the function of the loss another one: its "
        "gradients are small, and it cannot come near 0"
    )
    remedy: ClassVar[str] = (
        "give cross_entropy and binary_cross_entropy_with_logits the logits; nll_loss takes logarithms"
    )

    def judge(self, trace: Trace) -> Finding:
        functions = sum(seen.functions for seen in trace.main.all(ScoresGiven))
        if not functions:
            return self.unjudged("no function of torch's that expects scores is known to be in the loss", expected=True)
        wrong = [name for seen in trace.main.all(ScoresGiven) for name in seen.probabilities]
        detail = some(wrong) or f"{functions} functions of the loss, none of probabilities"
        return self.found(not wrong, detail, measured=len(wrong), limit=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersDiffer(Check):
    """A loader's workers, which each iterate over a data set of their own, hand out different batches."""

    premises: ClassVar[frozenset[Premise]] = frozenset()
    applies_to: ClassVar[frozenset[str]] = frozenset({"watched"})
    meaning: ClassVar[str] = (
        "an IterableDataset does not share its rows among num_workers: each hands out all of them, so that every row "
        "is learned as many times an epoch, one after the other"
    )
    remedy: ClassVar[str] = "ask torch.utils.data.get_worker_info() in __iter__, and take every num_workers-th row"

    min_rounds: int = 2
    """Rounds of the workers' batches that differ among themselves, below which all rows may be the same."""

    def judge(self, trace: Trace) -> Finding:
        judged = [seen for seen in trace.main.all(WorkerBatches) if seen.distinct >= self.min_rounds]
        if not judged:
            return self.unjudged("no loader iterates over a data set in several workers", expected=True)
        seen = max(judged, key=lambda seen: seen.alike / seen.rounds)
        detail = f"two of {seen.workers} workers handed out the same batch in {seen.alike} of {seen.rounds} rounds"
        return self.found(seen.alike < seen.rounds, detail, measured=seen.alike, limit=seen.rounds - 1)


SUM_MEANT = "several tasks' losses may be meant to add up; Adam takes the same step of a larger gradient"


@dataclass(frozen=True, slots=True, kw_only=True)
class LossNormalisedOverAccumulation(Check):
    """The losses of a window's micro-batches are divided by their number, so that their sum is a mean."""

    premises: ClassVar[frozenset[Premise]] = frozenset()
    applies_to: ClassVar[frozenset[str]] = frozenset({"watched"})
    meaning: ClassVar[str] = (
        "a compute_loss of the script's own, or a model's head (those for classes and BERT's of transformers 5.23, its "
        "issue 47688), leaves out num_items_in_batch, by which it is to divide: since 4.46 the Trainer does not "
        "where the model takes that number, and losses and gradients are gradient_accumulation_steps times too large; "
        "or a loop differentiates each micro-batch's mean as it is"
    )
    remedy: ClassVar[str] = (
        "divide a sum over the tokens by num_items_in_batch, or a mean by self.current_gradient_accumulation_steps; or "
        "have the Trainer divide: set its loss_is_scaled_for_ga to False, in older versions model_accepts_loss_kwargs; "
        "in a loop divide each loss by the number of micro-batches before backward"
    )

    def judge(self, trace: Trace) -> Finding:
        seen = trace.main.all(LossDivided)
        if not seen:
            return self.unjudged("no window of several micro-batches, or a loss that a library computes", expected=True)
        several = seen[0].micro_batches
        detail = f"{several} micro-batches a window, divided by {seen[0].by or 'nobody: their losses are added up'}"
        declared = trace.run.training.gradient_accumulation_steps > 1
        meant = "" if declared else SUM_MEANT
        return self.found(bool(seen[0].by), detail, measured=1 if seen[0].by else several, limit=1, meant=meant)
