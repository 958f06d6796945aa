"""What a training that is not ours is handed: the state that it loads, its workers' batches, the scores of its loss."""

from tunecheck.core.check import Check, required, some
from tunecheck.core.evidence import LossDivided, ScoresGiven, StateLoaded, StepInputs, WorkerBatches
from tunecheck.core.finding import Finding
from tunecheck.core.premises import Premise
from tunecheck.core.trace import Trace

BY_REFERENCE = "The best state is kept as model.state_dict(), whose tensors are the model's own and keep training."
ALL_FILTERED = "A filter keeps only the model's keys. None is left, because all have another prefix."
JUST_TAKEN = "a state dict that was taken just before may be loaded again unchanged"


class StateDictKeysMatch(Check):
    """Every loaded weight matches a parameter of the model, and is not that parameter itself."""

    needs = frozenset({"user_code"})
    meaning = f"""The keys have another prefix than the model (module., _orig_mod., base_model.model.), and strict=False
    drops them. The model then trains from its initial weights. {ALL_FILTERED} {BY_REFERENCE}"""
    remedy = """Strip the prefix, load into the inner model, or remove strict=False. Check missing_keys and
    unexpected_keys in the return value of load_state_dict. Keep a best state by copy.deepcopy."""

    def judge(self, trace: Trace) -> Finding:
        seen = trace.of_all_attempts(StateLoaded)
        required(trace.whole(StateLoaded) or seen, "the script loads no state dict into the trained model")
        problems = list[str]()
        for load in seen:
            if load.misnamed:
                problems.append(f"{load.into}: {len(load.misnamed)} match no parameter: {some(load.misnamed, 2)}")
            elif load.offered and not load.taken:
                problems.append(f"{load.into}: none of {load.offered} tensors was loaded")
        if (own := [load for load in seen if load.itself]) and not problems:
            detail = f"{own[0].into}: the {own[0].taken} loaded tensors are the model's own, with their present values"
            return self.unless({detail: BY_REFERENCE}, "", meant=JUST_TAKEN)
        if (empty := [load for load in seen if not load.offered]) and not problems:
            detail = f"{empty[0].into}: an empty state dict is loaded, so the weights do not change"
            return self.unless({detail: ALL_FILTERED}, "", meant="there may be no weights to load yet")
        return self.unless(problems, f"{sum(load.taken for load in seen)} tensors were loaded", compared=len(seen))


OUT_OF_REACH = "The output ends in a tanh, a sigmoid or a cosine, whose range does not cover the targets."
DOUBTFUL = {
    "exchanged": (
        "scores whose classes and positions are mixed by a view",
        "scores may lie in that order",
        "view(rows, classes, positions) mixes classes and positions: use transpose(1, 2).",
    ),
    "cut_at_0": (
        "loss functions whose scores are never below 0",
        "scores may count evidence, which is never negative",
        "The model ends in a ReLU or another activation. Its scores are never negative, and many get no gradient.",
    ),
    "parts_alike": (
        "pairs of cross entropies that train two parts of one output on the same targets",
        "an output may hold several models that are to learn the same",
        "Copied code trains the end scores on the start labels, or one head on another head's labels.",
    ),
    "unread": (
        "parts of the last layer's output that no term of the loss depends on",
        "a part may be learned by another loss, or be left for later",
        "A term of the loss is missing, or copied code computes it from another term's part of the output.",
    ),
    "off_policy": (
        "losses of a policy whose clipped ratios are not 1 before the first step",
        "rows may be another policy's, as with replayed ones",
        "The stored log-probabilities are of other positions or actions, or at another temperature.",
    ),
    "without_reference": (
        "divergences of a policy from a reference that still equals it after some steps",
        "a reference may follow the policy in each step",
        "The reference of the KL penalty is the policy itself, not a deep copy of it.",
    ),
    "rewarded": (
        "divergences of a policy from a reference that the loss raises",
        "a policy may be driven away from an old one",
        "The KL penalty has the wrong sign, so that distance from the reference is rewarded.",
    ),
    "unbounded": (
        "policy losses that take the smaller one of clipped and unclipped",
        "a ratio may be bounded on the other side by a second clip",
        "The clipped policy loss takes min although its terms are losses, or max although they are gains.",
    ),
    "foreign": (
        "losses whose targets are noise that the network's inputs do not contain",
        "random numbers may be learned to measure a step's time",
        "The target's noise is drawn anew, or its rows are in another order than the input's.",
    ),
    "of_itself": (
        "scores of rows with themselves, which are 1, or the highest of each row",
        "a loss may leave each row's score with itself out afterwards",
        "A similarity or a contrastive loss compares rows with themselves: both sides are the same embeddings.",
    ),
    "unnormalised": (
        "nll_loss of scores whose probabilities do not add up to 1",
        "nll_loss may serve to select values",
        "nll_loss receives scores without a log_softmax over their classes. The loss has no lower bound.",
    ),
    "outside": (
        "binary cross entropies of targets below 0 or above 1",
        "targets above 1 may be meant to push scores, as noisy labels",
        "Targets of a binary cross entropy are class numbers, or -1 and 1. The loss has no lower bound.",
    ),
    "over_positions": (
        "log-softmaxes over a row's positions, of scores of the vocabulary",
        "positions may compete for a token",
        "A softmax in the loss, such as one of kl_div's inputs, runs over rows or positions, not over classes.",
    ),
    "flat": (
        "log-softmaxes of scores that span less than 0.5, so nearly uniform ones",
        "a high temperature may be meant",
        "A temperature is used as a scale: cosines are multiplied by 0.05, not divided by it.",
    ),
    "again": (
        "cross entropies of the same scores and targets as another one",
        "a loss may count twice, as that of symmetric scores does",
        "One direction of a symmetric loss, or one of several heads, is used twice instead of the other.",
    ),
    "mispaired": (
        "pair losses whose positives are different texts, although each text is encoded twice",
        "a copy may be a negative on purpose",
        "The targets assume another order of the pairs in the batch: side by side, or one half after the other.",
    ),
    "softened": (
        "divergences of outputs and targets softened by two temperatures",
        "targets may be sharper on purpose",
        "The distillation temperature divides only the student's logits, or only the teacher's.",
    ),
    "reversed": (
        "kl_div calls whose target learns, while their input does not",
        "the reverse divergence may be meant, as in on-policy distillation or for a policy",
        "Student and teacher are swapped in kl_div, whose first argument is the student's log-probabilities.",
    ),
    "weighed_up": (
        "cross entropies whose most frequent class has a larger weight than the rarest one",
        "weights may be the costs of errors",
        "The class weights are in another order than the class numbers, as where one of them is sorted by name.",
    ),
    "far_off": (
        "cross entropies at first, more than 20 times that of a uniform guess",
        "a margin or initial weights may be large on purpose",
        "A scale of the scores is exponentiated twice, the initial weights are large, or the right class is masked.",
    ),
    "crossed": (
        "losses of outputs and targets of different shapes, which torch broadcasts",
        "all pairs may be meant, or one target for several outputs",
        "Outputs of shape [n, 1] meet targets or outputs of shape [n], or one column of targets meets many of outputs.",
    ),
}
"""Field of ScoresGiven to what it shows, who does so on purpose, and the usual cause."""


class LossReceivesLogits(Check):
    """torch's loss functions receive the kind of input that they are defined for.

    Cross entropy and log-softmax receive logits, not probabilities, and no score of a row with itself. Pair losses
    receive targets of -1 and 1, binary cross entropy targets from 0 to 1. Most targets are within the outputs' range.
    Both inputs of kl_div are distributions over one axis. Noise to be predicted is part of an input. A policy's clipped
    ratios start at 1 and limit its gain. Its distance from a reference raises the loss.
    """

    needs = frozenset({"user_code"})
    meaning = f"""A softmax or sigmoid runs before a loss function that applies its own. Gradients are then small, and
    the loss stays away from 0. Or a pair loss has targets of 0 and 1: pairs with 0 teach nothing, or the wrong thing.
    {" ".join(cause for *_, cause in DOUBTFUL.values())} {OUT_OF_REACH}"""
    remedy = """Pass logits to cross_entropy and binary_cross_entropy_with_logits. Pass log-probabilities to nll_loss.
    Use targets of -1 and 1 for losses of pairs. Score queries against documents. Mask the diagonal of scores among
    rows. Squeeze outputs to the shape of their targets. Scale targets to the range of the outputs."""

    def judge(self, trace: Trace) -> Finding:
        given = trace.records(ScoresGiven)
        functions = sum(seen.functions for seen in given)
        if not any(getattr(seen, field) for seen in given for field in DOUBTFUL):
            required(functions, "no torch function that expects logits was found in the loss")
        wrong = [name for seen in given for name in seen.probabilities]
        if not wrong and (unreached := [told for seen in given for told in seen.unreached]):
            return self.at_most(len(unreached), 0, some(unreached, 1), causes=[OUT_OF_REACH])
        for field, (detail, meant, cause) in DOUBTFUL.items():
            if not wrong and (found := sum(getattr(seen, field) for seen in given)):
                return self.at_most(found, 0, f"{detail}: {found}", meant=meant, causes=[cause])
        detail = some(wrong) or f"{functions} loss functions, all with what they expect"
        return self.at_most(len(wrong), 0, detail)


class WorkersDiffer(Check):
    """Workers that iterate over a data set of their own yield different batches."""

    needs = frozenset({"user_code"})
    meaning = "An IterableDataset does not split its rows among num_workers, so each worker yields all of them."
    remedy = "Call torch.utils.data.get_worker_info() in __iter__, and take every num_workers-th row."

    min_rounds: int = 2
    """Rounds with batches that differ from each other. With fewer, all rows may be the same."""

    def judge(self, trace: Trace) -> Finding:
        judged = [seen for seen in trace.records(WorkerBatches) if seen.distinct >= self.min_rounds]
        seen = max(required(judged, "no loader uses several workers"), key=lambda seen: seen.alike / seen.rounds)
        detail = f"two of {seen.workers} workers yielded the same batch in {seen.alike} of {seen.rounds} rounds"
        return self.found(seen.alike < seen.rounds, detail, measured=seen.alike, limit=seen.rounds - 1)


ONE_MEAN = Premise.CAUSAL_LM, Premise.TOKEN_MEAN_LOSS, Premise.GRADIENT_SUMMED
"""What holds if all losses are means of one kind."""
SUMMED_IN_LOOP = "The loop calls backward on each micro-batch's mean loss without dividing it by their number."
SUM_MEANT = "the losses of several tasks may be meant to add up; Adam takes the same step for a larger gradient"


class LossNormalisedOverAccumulation(Check):
    """With gradient accumulation, the loss is averaged over the step, by the loop, the Trainer or compute_loss."""

    needs = frozenset({"user_code"})
    without = (LossDivided, "no step has several micro-batches, or a library computes the loss")
    premises_to_fail = frozenset({Premise.GRADIENTS_UNEDITED})
    meaning = f"""{SUMMED_IN_LOOP} The script's compute_loss or the model's head ignores num_items_in_batch, but the
    Trainer leaves the division to it. In transformers 5.23, heads for classes and BERT do so (its issue 47688)."""
    remedy = """In a loop, divide each loss by the number of micro-batches. In compute_loss, divide a sum over tokens by
    num_items_in_batch, or a mean by self.current_gradient_accumulation_steps. Or make the Trainer divide: set its
    loss_is_scaled_for_ga (in older versions model_accepts_loss_kwargs) to False."""

    def judge(self, trace: Trace) -> Finding:
        seen = trace.all(LossDivided)
        several, uneven = seen[0].micro_batches, sum(window.uneven for window in seen)
        if uneven:
            detail = f"the losses of {several} micro-batches count differently, in {uneven} steps"
            return self.at_most(uneven, 0, detail, meant="some rows may count more than others on purpose")
        given = [step.digests for step in trace.records(StepInputs) if not step.opaque]
        again = bool(given) and all(len(digests) > len({*digests}) == 1 for digests in given)
        required(not again, "the passes of a step are over the same rows, as in adversarial training")
        divided = f"divided by {seen[0].by}" if seen[0].by else "whose losses are summed, not averaged"
        detail = f"{several} micro-batches per step, {divided}"
        one_mean = all(map(trace.holds, ONE_MEAN)) and seen[0].passes == 1
        meant = "" if trace.run.training.gradient_accumulation_steps > 1 or one_mean else SUM_MEANT
        causes = [SUMMED_IN_LOOP * (not trace.holds(Premise.STEP_DECLARED))]
        return self.at_most(1 if seen[0].by else several, 1, detail, meant=meant, causes=causes)
