"""What is saved and repeated: files, checkpoints, merges, and a second run of the same."""

import math
import re

from tunecheck.core import evidence
from tunecheck.core.check import Check, NumericCheck, holding, recorded, relative_error, required, some, worst_of
from tunecheck.core.errors import MissingEvidence, NotApplicable
from tunecheck.core.finding import Finding
from tunecheck.core.premises import Premise
from tunecheck.core.trace import Attempt, Trace


class AdapterRoundTrip(NumericCheck):
    """The saved adapter holds every trained tensor bit for bit, and gives the same logits when loaded.

    Its configuration file matches the run, including the dropout, which eval mode does not show. The same holds for the
    files of a resumed run.
    """

    needs = frozenset({"adapters", Premise.CAUSAL_LM, Premise.FILES_WRITTEN_HERE})
    premises_to_fail = frozenset({Premise.GRADIENT_DUE})
    meaning = "The file is empty or partial. Its keys were renamed. A fresh adapter was saved, not the trained one."
    remedy = "Compare the file's names with the model's. Load with PeftModel.from_pretrained, not get_peft_model."

    max_error_fp32: float = 1e-6  # 0.0 measured
    max_error_16bit: float = 1e-6

    def judge(self, trace: Trace) -> Finding:
        trace.all(evidence.Step)  # raises where no step was trained: B is still zero
        seen, limit = trace.one(evidence.RoundTrip), self.limit(trace)
        problems = _not_the_trained(trace, seen, limit)
        for resumed in trace.made_for(evidence.AttemptPurpose.RESUME):
            for again in resumed.all(evidence.RoundTrip):
                problems += [f"after the resume: {told}" for told in _not_the_trained(trace, again, limit)]
        detail = "; ".join(problems) or f"{seen.tensors} tensors, {seen.file_bytes:,} bytes"
        return self.at_most(seen.logit_difference, limit, detail, problems=problems, compared=seen.tensors)


def _not_the_trained(trace: Trace, seen: evidence.RoundTrip, limit: float) -> list[str]:
    """Return in words what a saved adapter has not of the trained one, or has more."""
    idle = (name for moved in trace.records(evidence.Movement) for name in moved.idle)
    resting = {name.replace(".default.", ".") for name in (*trace.run.rests, *trace.unused, *idle)}
    tensors = {
        "missing from the file": seen.missing,
        "in the file but not in the model": seen.unexpected,
        "with other bytes": seen.differing,
        "of B are zero": tuple(name for name in seen.zero_b if name not in resting),
        "differ when loaded": seen.reread_differing,
    }
    wrong = {
        **{f"{len(names)} tensors {what}: {some(names)}": names for what, names in tensors.items()},
        "the loaded adapter gives other logits": not seen.logit_difference <= limit,
        f"its configuration has {some(seen.settings_differing)}": seen.settings_differing,
    }
    return holding(wrong)


class AdapterReadsBack(NumericCheck):
    """In a fresh process, transformers and peft alone reproduce the trained model's logits from the saved files."""

    needs = frozenset({"read_back", Premise.CAUSAL_LM, Premise.FILES_WRITTEN_HERE})
    meaning = "The saved files lack something that training held in memory: another alpha, other targets or base."
    remedy = "Compare adapter_config.json with the run. Fix base_untouched or adapter_round_trip first if it failed."

    max_error_fp32: float = 1e-4
    """Error in fp32 arithmetic, also of 16-bit runs. 0 on the CPU; another process may have other kernels on a GPU."""
    max_error_16bit: float = 0.05
    """Error in the run's own arithmetic: peft loads adapters in fp32, which rounds otherwise. 0.005 in bf16."""
    min_effect: float = 1e-3
    """Effect of the adapters, on against off. Without one the comparison would prove nothing."""

    def judge(self, trace: Trace) -> Finding:
        found, exact = trace.finished(evidence.AttemptPurpose.READ_BACK).all(evidence.ReadBack), []
        seen, limit = recorded(found, "the read back attempt recorded no ReadBack")[-1], self.limit(trace)
        detail = f"{len(seen.files)} files, logits differ by {seen.logit_difference:.2g}"
        if seen.adapter_effect is not None:
            detail += f"; turning the adapters off changes them by {seen.adapter_effect:.2g}"
        if seen.exact_difference is not None:
            detail += f"; in fp32 arithmetic {seen.exact_difference:.2g}"
            exact.append((seen.exact_difference, self.max_error_fp32))
        compared = self.at_most(seen.logit_difference, limit, detail, *exact)
        if compared.passed and seen.adapter_effect is not None and not seen.adapter_effect >= self.min_effect:
            return self.found(False, detail, measured=seen.adapter_effect, limit=self.min_effect)
        return compared


class MergeKeepsFunction(NumericCheck):
    """The merged model returns the trained model's logits without peft."""

    needs = frozenset({"merge", Premise.CAUSAL_LM, Premise.MERGED})
    meaning = """The adapter was merged into other weights than it was trained with: the file's instead of the unpacked
    4-bit ones. The sum was rounded to 4 bit again. The merge has too little precision, or did not happen."""
    remedy = """Unpack the 4-bit base with model.dequantize(), load the adapter on it, and call
    merge_and_unload(safe_merge=True)."""

    max_error_fp32: float = 1e-4
    """Healthy runs give 1.4e-6 on SmolLM2-135M after 16 steps, and 5e-7 on a tiny model. Rounding to 4 bit again, or
    merging into the file's weights, gives 0.30, and at least 0.011 on the tiny model."""
    max_error_16bit: float = 0.1
    """Healthy 0.031 in bf16 on the CPU, 28 tokens. It is the rounding of a plain linear against a packed one: 0.031
    unmerged too, 0.029 merged in fp32. The same two faults give 0.30."""
    max_noise_factor: float = 4.0
    """Multiple of the difference between the base's logits in 16 bit and in fp32, if measured. A merged model rounds
    differently, not more. The limit is then at most `max_error_16bit`."""
    max_share_error: float = 0.05
    """Deviation of the adapter's share in the merged weights from 1, in the worst module. 0.009 in bf16 at a rate of
    2e-5, where rounding removes most of it; 0.18 if nine tenths are merged."""
    min_effect: float = 1e-3
    """Effect of the adapter, merged against left out. Without one the comparison would prove nothing."""

    def judge(self, trace: Trace) -> Finding:
        found, limit = trace.finished(evidence.AttemptPurpose.MERGE).all(evidence.Merged), self.limit(trace)
        seen = recorded(found, "the merge attempt recorded no Merged")[-1]
        if seen.rounding is not None:
            limit = max(min(self.max_noise_factor * seen.rounding, limit), self.max_error_fp32)
        effective = seen.adapter_effect >= self.min_effect
        if not effective and seen.logit_difference <= limit and not trace.holds(Premise.EVERY_STEP_LEARNS):
            raise NotApplicable(f"the adapters change the logits by only {seen.adapter_effect:.2g}")
        detail = f"merged, logits differ by {seen.logit_difference:.2g}"
        detail += f"; without the adapter by {seen.adapter_effect:.2g}"
        detail += "" if seen.rounding is None else f"; by rounding to 16 bit {seen.rounding:.2g}"
        share = []
        if seen.share is not None:
            detail += f"; {seen.share:.4g} of the expected change of {seen.share_at}"
            share.append((abs(seen.share - 1), self.max_share_error))
        left = [f"adapters: {some(seen.adapters_left)}"] if seen.adapters_left else []
        left += [f"4-bit: {some(seen.packed_left)}"] if seen.packed_left else []
        detail += "".join(f"; still {what}" for what in left)
        if seen.logit_difference <= limit and not effective:
            return self.found(False, detail, measured=seen.adapter_effect, limit=self.min_effect)
        return self.at_most(seen.logit_difference, limit, detail, *share, problems=left)


class RepeatEquals(Check):
    """The same run in a second fresh process has the same losses and gradient norms, to the last bit.

    Losses alone prove little: with neutral adapters the first ones are equal for any A.
    """

    needs = frozenset({"repeat", Premise.CAUSAL_LM, Premise.REPEATED})
    meaning = "A random number generator is not seeded, or the arithmetic is not deterministic."
    remedy = "Seed every generator. Call torch.use_deterministic_algorithms(True) to find kernels with atomics."

    def judge(self, trace: Trace) -> Finding:
        return _same_steps(self, trace, trace.finished(evidence.AttemptPurpose.REPEAT), trace.run.repeat_steps)


class FallbackEqualsReference(Check):
    """After a fallback to the CPU, losses and gradient norms equal those of a run that began there, bit for bit."""

    needs = frozenset({"reference"})
    meaning = "The fallback inherited weights, optimizer state, data position or a setting from the GPU attempt."
    remedy = "Find the first step that differs. Step 0 points to the initial state, a later one to optimizer or data."

    def judge(self, trace: Trace) -> Finding:
        return _same_steps(self, trace, _reference(trace), len(trace.steps))


class FallbackStartsFresh(Check):
    """A fallback starts with the tensors and random state of a run that started on the CPU."""

    needs = frozenset({"reference"})
    meaning = "The fallback inherited half-trained weights, optimizer moments or an advanced random state."
    remedy = "Load the model from its file in a fresh process. Do not move the old one with .to()."

    def judge(self, trace: Trace) -> Finding:
        wanted, begun = map(_beginning, (_reference(trace), trace.main))
        problems = []
        if other := _unlike(begun, wanted):
            problems.append(f"{len(other)} differ from a run that starts on the CPU: {some(other)}")
        if kept := [name for name in begun.tensors if " of " in name]:
            problems.append(f"the optimizer held a state at the start: {some(kept)}")
        return self.unless(problems, f"{len(begun.tensors)} tensors and the random state are those of a fresh start")


def _reference(trace: Trace) -> Attempt:
    """Return the run that began on the CPU. Raises MissingEvidence if it did not finish, NotApplicable without it."""
    required(len(trace.trainings) >= 2, "no fallback happened")
    device = trace.main.start.device
    required(device.startswith("cpu"), f"the fallback ended on {device}: only a fallback to the CPU has a reference")
    return trace.finished(evidence.AttemptPurpose.REFERENCE)


def _beginning(attempt: Attempt) -> evidence.TrainerState:
    """Return all that an attempt starts from. Raises MissingEvidence where it was not recorded."""
    begun = [seen for seen in attempt.all(evidence.TrainerState) if seen.step == 0]
    return recorded(begun, f"the {attempt.start.purpose} attempt did not record its start")[0]


class ResumeEquals(NumericCheck):
    """A fresh process that resumes from the middle checkpoint reproduces the uninterrupted run's losses, rates and
    tensors.

    It starts with the uninterrupted run's state of that step, to the last bit. Its results are equal to the last bit
    too, if repeating the run gives the same bits.
    """

    needs = frozenset({"resume", Premise.CAUSAL_LM, Premise.RESUMED})
    meaning = """The checkpoint lacks the optimizer state, the schedule, the data position or the random state. Or the
    adapter is loaded frozen or fresh."""
    remedy = "A jump at the first step points to weights or data, a slow drift to optimizer or schedule."

    max_error_fp32: float = 1e-6
    max_error_16bit: float = 1e-3

    def judge(self, trace: Trace) -> Finding:
        again, limit = trace.finished(evidence.AttemptPurpose.RESUME), self.limit(trace)
        if repeats := [attempt for attempt in trace.made_for(evidence.AttemptPurpose.REPEAT) if attempt.finished]:
            limit = limit if _differing(trace, repeats[-1]) else 0.0
        worst, detail = _departure(trace, {0: again}, trace.records(evidence.TrainerState))
        if worst == 0:
            detail = f"{len(again.all(evidence.Step))} steps equal from step {trace.run.resume_from} on"
        if worst <= limit and not again.all(evidence.Trained):
            raise MissingEvidence("the resume attempt recorded no norms of its tensors")
        norms = {name: norm for ended in again.all(evidence.Trained) for name, norm in ended.norms.items()}
        pairs = {name: (norms.get(name, math.nan), norm) for name, norm in trace.one(evidence.Trained).norms.items()}
        drifted = {name: relative_error(norm, wanted) for name, (norm, wanted) in pairs.items() if norm != wanted}
        if worst <= limit and drifted:
            name, worst = worst_of(drifted.items(), key=lambda item: item[1])
            detail += f"; {name} differs by {worst:.2g} after the last one"
        same_scaler = all(ended.scaler == trace.one(evidence.Trained).scaler for ended in again.all(evidence.Trained))
        detail += "" if same_scaler else "; the gradient scaler's state differs"
        return self.at_most(worst, limit, detail, problems=() if same_scaler else ("scaler",))


class RescaleEquals(NumericCheck):
    """From the same checkpoint, another number of processes continues with the same state, rows, rates, gradient and
    losses.

    State, rows and rates are equal to the last bit. Losses and the norm of the first gradient differ only by the order
    of sums. With dropout they are not compared, because the masks differ.
    """

    across_ranks = True
    needs = frozenset({"rescale"})
    meaning = """The data position is counted per process. The epoch restarts. The optimizer state is dropped, or is
    that of one shard. Rows per step, gradient or learning rate depend on the number of processes."""
    remedy = "Save whole tensors, and how many rows all processes trained. Keep processes x accumulation constant."

    max_error_fp32: float = 1e-5  # losses: 1.2e-7 measured over 17 steps, from two shards to one process
    max_error_16bit: float = 1e-2  # losses: 5.2e-4 measured over 47 steps, all weights in bf16

    def judge(self, trace: Trace) -> Finding:
        saved, limit = trace.of_every_rank(evidence.TrainerState)[0], self.limit(trace)
        found = {processes: _departure(trace, _rescaled(trace, processes), saved) for processes in trace.run.rescale_to}
        processes = worst_of(found, key=lambda number: found[number][0])
        error, where = found[processes]
        rescaled = f"from {trace.run.processes} processes to"
        detail = f"{rescaled} {processes}: {where}"
        if error <= limit:
            detail = f"{rescaled} {', '.join(map(str, found))}: the same state, rows and rates"
            masks = "dropout draws other masks, so losses are not compared"
            detail += f"; {masks}" if "dropout" in trace.run.features else f", losses within {error:.2g}"
        return self.at_most(error, limit, detail)


def _rescaled(trace: Trace, processes: int) -> dict[int, Attempt]:
    """Return the attempt of so many processes from the checkpoint, by rank. Raises MissingEvidence where none ended."""
    for attempt in trace.made_for(evidence.AttemptPurpose.RESCALE):
        if (attempt.start.changes.get("parallel") or {"processes": 1})["processes"] != processes:
            continue
        recorded(attempt.finished, f"{processes} processes did not finish after the resume: it {attempt.ending}")
        ranks = {rank: attempt.of_rank(rank) for rank in (0, *sorted(attempt.of_ranks))}
        told = {rank: own for rank, own in ranks.items() if own.all(evidence.TrainerState)}
        if silent := set(range(processes)) - told.keys():
            raise MissingEvidence(f"rank {min(silent)} of {processes} did not record its resumed state")
        return told
    raise MissingEvidence(f"no attempt of {processes} processes resumed from the checkpoint")


def _departure(trace: Trace, again: dict[int, Attempt], saved: list[evidence.TrainerState]) -> tuple[float, str]:
    """Return how far these ranks depart from the uninterrupted run, infinite for what must be equal, and where."""
    first, steps = {step.step: step for step in trace.steps}, again[0].all(evidence.Step)
    start = recorded(trace.run.resume_from, "the header of the trace lacks probes.resume_from")
    end = trace.run.training.max_steps
    if [step.step for step in steps] != list(range(start, end)):
        return math.inf, f"it took steps {[step.step for step in steps][:3]}..., not {start} to {end - 1}"
    if missing := [step.step for step in steps if step.step not in first]:
        raise MissingEvidence(f"the uninterrupted run has no step {missing[0]}")
    for rank, attempt in again.items():
        states = [*saved[-1:], *attempt.all(evidence.TrainerState)[-1:]]
        if lost := _unlike(*states) if len(states) == 2 else []:  # else one of both was not looked at
            return math.inf, f"rank {rank} starts with values that differ from the saved ones: {some(lost)}"
    rescaled = again[0].start.purpose == evidence.AttemptPurpose.RESCALE
    recorded(not rescaled or again[0].all(evidence.Window), "one of the two runs did not record its rows")
    rows = {seen.step: seen for seen in trace.records(evidence.Window)}
    for seen in again[0].all(evidence.Window):
        if seen.step in rows and seen.digests != (uninterrupted := rows[seen.step]).digests:
            return math.inf, f"step {seen.step} has rows {some(seen.rows)}, uninterrupted {some(uninterrupted.rows)}"
    comparable = not rescaled or "dropout" not in trace.run.features
    step = worst_of(steps, key=lambda step: _difference(step, first[step.step], losses=comparable))
    other = first[step.step]
    words = f"step {step.step}: loss {step.loss:.6f} and rate {step.learning_rate:.4g}, uninterrupted "
    words += f"{other.loss:.6f} and {other.learning_rate:.4g}"
    departures = [(_difference(step, other, losses=comparable), words)]
    norm, wanted = steps[0].gradient_norm, first[start].gradient_norm  # of the same weights on the same rows
    if rescaled and comparable and not (math.isnan(norm) and math.isnan(wanted)):  # fp16 skips a step that overflows
        words = f"step {start}: norm of the gradient {norm:.6g}, uninterrupted {wanted:.6g}"
        departures.append((relative_error(norm, wanted), words))
    return worst_of(departures, key=lambda departure: departure[0])


def _unlike(one: evidence.TrainerState, other: evidence.TrainerState) -> list[str]:
    """Return the names of what these two states hold otherwise, or one of them alone."""
    before, after = (seen.tensors | seen.settings for seen in (one, other))
    return sorted(name for name in before | after if before.get(name) != after.get(name))


def _same_steps(check: Check, trace: Trace, attempt: Attempt, due: int) -> Finding:
    """Return whether the first steps of an attempt, at least so many, are those of the training to the last bit."""
    again = attempt.all(evidence.Step)
    recorded(len(again) >= due, f"the {attempt.start.purpose} attempt took {len(again)} steps")
    detail = f"{len(again)} steps equal to the last bit"
    if different := _differing(trace, attempt):
        detail = f"{len(different)} of {len(again)} steps differ, first {different[0]}"
    return check.at_most(len(different), 0, detail)


def _differing(trace: Trace, attempt: Attempt) -> list[str]:
    """Return the steps whose loss or norm of the gradient has other bits; a norm that neither reports is the same."""
    first, found = {step.step: step for step in trace.steps}, []
    for step in attempt.all(evidence.Step):
        if (other := first.get(step.step)) is None:
            found.append(f"step {step.step}: the first run has no such step")
        elif step.loss != other.loss:  # as a NaN does, which differs from itself
            found.append(f"step {step.step}: loss {other.loss!r} and {step.loss!r}")
        elif repr(step.gradient_norm) != repr(other.gradient_norm):  # by their spelling, so that NaN equals NaN
            found.append(f"step {step.step}: norm of the gradient {other.gradient_norm!r} and {step.gradient_norm!r}")
    return found


def _difference(step: evidence.Step, other: evidence.Step, *, losses: bool = True) -> float:
    """Return the relative difference of two losses, 0 where they are not compared; infinite where the rates differ."""
    if not relative_error(step.learning_rate, other.learning_rate) <= 1e-9:  # float64 arithmetic in every precision
        return math.inf
    return relative_error(step.loss, other.loss) if losses else 0.0


WORST_KEPT = "greater_is_better is wrong for metric_for_best_model: it defaults to True, unless the name ends in loss."
LOWER = re.compile("loss|perplexity|ppl|error|err|[cw]er|r?mse|mae|nll|bpc")
"""Words in the names of metrics of which less is better."""
HIGHER = re.compile(
    "acc|accuracy|accuracies|f|precision|recall|auc|auroc|(sacre)?bleu|rouge|rougel|rougelsum|meteor|mcc|matthews|exact|"
    "m?ap|mrr|ndcg|pearsonr?|spearmanr?|m?iou|dice|rewards?|margins"
)
"""The same for those of which more is."""
OTHERWISE_SAVED = "the trained weights may be saved by other means, or be of no use any more"
COPY_OF_START = "a copy of the start may be kept on purpose, and the trained weights be saved by other means"
NOTHING_SAVED = "The adapter file is empty: its state dict was filtered twice, or merge_and_unload's result dropped."
START_SAVED = "A state dict or average from before the training was saved."
BASE_SAVED = "unload removed the adapters, and the plain base was saved."
RESTING_SAVED = "The saved adapter is not the active one that was trained."
SAVED_FIRST = "The model is saved before the training, and never after it."
FRESH_SAVED = "A new adapter is saved instead of the trained one."
NEVER_UPDATED = "An average is never updated, or the base is loaded again and saved."
OTHER_SAVED = "A teacher, or another model, is saved instead of the trained one."
SWAPPED = "By copy and paste, a tensor is saved under another one's name."
PART_SAVED = "Body and head are trained, but only one of them is saved."
WRAPPED = "The base is saved with adapters around its layers: save the adapters, or merge_and_unload's result."
ADAPTERS_ALONE = "Only the adapters are saved, although the base is trained, too."


class SavedAsTrained(Check):
    """Saved tensors are the trained ones.

    save_pretrained writes tensors, and those that training changed do not have their initial values. Other files may be
    a copy from before training, the plain base, or an inactive adapter, if some trained weights are saved too. The best
    checkpoint is the one with the best metric.
    """

    needs = frozenset({"user_code"})
    meaning = f"""{NOTHING_SAVED} {START_SAVED} {SAVED_FIRST} {FRESH_SAVED} {NEVER_UPDATED} {OTHER_SAVED} {PART_SAVED}
    {ADAPTERS_ALONE} {WRAPPED} {SWAPPED} {WORST_KEPT} {BASE_SAVED} {RESTING_SAVED}"""
    remedy = """Save the model without a state_dict of your own, or build it after training. Save what
    merge_and_unload returns. Call set_adapter before training. Compare the file with model.state_dict()."""

    def judge(self, trace: Trace) -> Finding:
        for best in trace.records(evidence.BestChosen):
            named = re.split(r"[\W\d_]+", best.metric.lower())
            lower, higher = (any(map(words.fullmatch, named)) for words in (LOWER, HIGHER))
            if (lower, higher) == (best.greater, not best.greater):
                detail = f"the checkpoint with the {'highest' if lower else 'lowest'} {best.metric} counts as the best"
                return self.unless({detail: WORST_KEPT}, "", meant="a metric of the script's own may turn the sign")
        seen = trace.of_all_attempts(evidence.Written)
        required(seen, "no trained tensor was saved after the first step")
        first, ended = [w for w in seen if w.first], [w for w in seen if w.lost]
        seen = [w for w in seen if not w.first and not w.lost]
        own = [written for written in seen if written.own]
        problems = dict.fromkeys(["save_pretrained wrote no tensors"] * any(not w.tensors for w in own), NOTHING_SAVED)
        stale = proven = [w for w in own if w.earlier and not w.returned]
        if not stale and not any(w.trained or w.other > len(w.earlier) for w in seen):
            stale = [w for w in seen if w.earlier]
        stale = stale or [w for w in seen if w.overwrites]
        last = [w for each in trace.attempts if each is not trace.main for w in each.all(evidence.Written) if w in seen]
        kept_start = [w for w in last if len(w.earlier) > w.other]
        if not stale and kept_start and not any(w.trained for w in last):  # a checkpoint is no answer to that
            stale = kept_start
        copied = not proven and any(w.other or w.returned or w.overwrites or w in kept_start for w in stale)
        if swapped := [name for written in seen for name in written.misnamed]:
            problems[f"{len(swapped)} tensors are saved with another one's values: {some(swapped)}"] = SWAPPED
        for old in (w.earlier for w in stale[-1:]):
            problems[f"{len(old)} tensors still have their initial values: {some(old)}"] = START_SAVED
        if first and not problems:
            told = {f"the script itself saved {len(first[0].earlier)} tensors only before the first step": SAVED_FIRST}
            return self.unless(told, "", meant=COPY_OF_START)
        if seen[-1:] and seen[-1].blank and not problems:
            told = {"the adapter that is saved last has never learned: all its B are 0": FRESH_SAVED}
            return self.unless(told, "", meant="a new adapter may be kept for the next training")
        for all_files in ended if not problems else ():
            lost, kept = all_files.lost, all_files.trained
            words = f"{len(lost)} of {len(lost) + kept} trained tensors are in no file: {some(lost)}"
            told = {f"{words}; {all_files.other} matrices of another model are": OTHER_SAVED} if not kept else {}
            if kept and (all_files.scoring or all_files.within or (all_files.leading and len(lost) > kept)):
                told = {f"{words}; the others are": ADAPTERS_ALONE if all_files.within else PART_SAVED}
            if told:
                return self.unless(told, "", meant=OTHERWISE_SAVED)
        # an average begins as a copy of the start, and is another by the end
        if not problems and (copies := [w for w in seen if w.start or w.other or not w.trained]) and copies[-1].start:
            beside = "beside the trained ones" if copies[-1].trained else "in a file of their own"
            told = {f"all trained tensors are saved with their initial values, {beside}": NEVER_UPDATED}
            return self.unless(told, "", meant=COPY_OF_START)
        others = last or seen  # a checkpoint is no answer to that, either
        if (base := max(w.without_adapters for w in others)) and not any(w.trained or w.other for w in others):
            problems[f"{base} plain base weights are saved, without what was trained"] = BASE_SAVED
            copied |= "adapters" not in trace.run.features or any(w.trained or w.other for w in seen)
        if not problems and any(w.unloaded for w in seen):
            told = {"the saved plain base is that of a model whose adapters were removed, not merged": BASE_SAVED}
            return self.unless(told, "", meant=COPY_OF_START)
        merged = [*trace.of_all_attempts(evidence.Merged), *trace.of_all_attempts(evidence.ReadBack)]
        nothing_trained = not merged and not any(w.trained or w.other > w.resting for w in seen)
        if nothing_trained and (resting := max((w.resting for w in own), default=0)):
            words = f"{resting} tensors belong to an untrained adapter, and no trained tensor is saved"
            problems[words] = RESTING_SAVED
        if not problems and (wrapped := max(w.wrapped for w in seen)):
            told = {f"{wrapped} tensors of a folder have names within adapters: from_pretrained finds none": WRAPPED}
            return self.unless(told, "", meant="whoever loads the folder may first wrap the base in adapters")
        if nothing_trained and not problems and not all(w.tensors for w in seen):
            told = {"an empty dictionary is saved, and no trained tensor": NOTHING_SAVED}
            return self.unless(told, "", meant="it may serve something else than the model")
        meant = COPY_OF_START if copied and len(problems) == 1 else ""
        return self.unless(problems, f"up to {max(w.trained for w in seen)} trained tensors in a file", meant=meant)
