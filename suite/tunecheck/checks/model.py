"""The model as it is built and as it stays: trainable set, quantisation, weights against their file."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from tunecheck.core import evidence
from tunecheck.core.check import NOTHING_TRAINABLE, Check, NumericCheck, grouped, holding, recorded, said_once, some
from tunecheck.core.errors import NotApplicable
from tunecheck.core.finding import Finding
from tunecheck.core.premises import OF_THE_RUN, Premise, Source
from tunecheck.core.trace import Trace

ADAPTED_TWICE = "get_peft_model ran twice, as when SFTTrainer also receives a peft_config."
FLAGS = "The script sets requires_grad of other tensors: it freezes too many, or too few."


class TrainableSet(Check):
    """Exactly the tensors that are declared to learn require a gradient, from start to end."""

    needs = frozenset({Premise.TRAINED_SET_DECLARED, Premise.ADAPTERS_ENUMERATED})
    meaning = f"""{FLAGS} Adapters are missing in some layers. A helper froze them, or a substring match unfroze the
    base. {ADAPTED_TWICE} A new classification head stays frozen at random values, because no task_type is set."""
    remedy = """Search for requires_grad_ calls. With adapters, compare target_modules and layer numbers with the named
    tensors, and search for set_adapter calls. Set the task_type, or list the head in modules_to_save."""

    def judge(self, trace: Trace) -> Finding:
        censuses = trace.all(evidence.Census)
        # peft puts this before the name of each tensor of the model that it adapts
        differing = twice = {name for name in censuses[0].trainable if name.count("base_model.model.") > 1}
        differing = differing.union(*(set(seen.expected_trainable) ^ set(seen.trainable) for seen in censuses))
        problems = said_once((census.when, *wrong) for census in censuses for wrong in _trained_wrongly(trace, census))
        if twice:
            words = f"get_peft_model received a model with adapters: {some(sorted(twice), 1)}"
            problems = {words: ADAPTED_TWICE, **problems}
        census = trace.one(evidence.Census)
        share = census.trainable_parameters / max(1, census.total_parameters)
        numbers = f"{census.trainable_parameters:,} of {census.total_parameters:,} parameters trainable ({share:.2%})"
        if not differing and not any(census.trainable for census in censuses):
            return self.found(False, f"{NOTHING_TRAINABLE} ({numbers})", measured=0, limit="at least 1")
        if not differing and trace.run.lora is not None and (lost := trace.run.lora.unmatched):
            detail = f"no module matches {' or '.join(lost)} of the adapter configuration; {numbers}"
            return self.at_most(len(lost), 0, detail, meant=NAMES_OF_OTHERS)
        return self.at_most(len(differing), 0, "; ".join([*problems, numbers]), causes=problems.values())


def _trained_wrongly(trace: Trace, census: evidence.Census) -> Iterator[tuple[str, str]]:
    wanted, got = set(census.expected_trainable), set(census.trainable)
    cause = FLAGS if trace.run.lora is None else ""
    if missing := sorted(wanted - got):
        words = f"{len(missing)} of {len(wanted)} not trainable: {by_layer(missing)}"
        if trace.facts.get(Premise.TRAINED_SET_DECLARED, OF_THE_RUN).source is not Source.EXPECTED:
            pattern = told_apart(missing, sorted(got)) or "REGEX"
            words += f"; if this is intended, declare it with --expect 'frozen={pattern}'"
        yield words, cause
    if extra := sorted(got - wanted):
        yield f"{len(extra)} trainable, but not declared: {some(extra)}", cause


NAMES_OF_OTHERS = "one list of names may serve models of several architectures"
WITHOUT_DROPOUT = "a policy, or a small model with much data, may train in eval mode to disable dropout"
FROM_SCRATCH = "a model may be trained from scratch, and take its configuration alone from that folder"
CAST = "The whole model is cast to 16 bit, as by model.half(). That rounds the rotary buffers and fp32 adapters."
NO_WEIGHTS = "The model is built from the checkpoint's configuration alone, which brings no weights."
WITHOUT_STATISTICS = "a network may be built to do without the statistics of its normalisations"
UNCALIBRATED = "A normalisation layer is in eval mode before it has seen a batch, so it normalises nothing."
NEVER_EVAL = "Nothing calls model.eval() before an evaluation, so its results are noisy and too bad."
LEFT_IN_EVAL = "Nothing calls model.train() after an evaluation, so dropout is off for the rest of the training."
QUIET_PHASE = "a script may end its training without dropout, or with the statistics of its norms frozen"
NOISY_EVALUATION = "noise in passes without gradients may be meant, as for an uncertainty or a second view"
NOISY_TEACHER = "noise in a teacher's answers may be meant, as in a mean teacher or for an uncertainty"
TEACHER_TRAINING = "A teacher or a reference model is in train mode: nothing calls its eval()."
NEVER_TRAINING = "Nothing calls model.train() after model.eval(), or after from_pretrained, which sets eval mode."
IN_EVAL = "in eval mode"


class StateInTraining(Check):
    """In every forward pass of every step the model is in train mode, adapters are on, and gradients are required.

    Autocast, attention, gradient checkpointing, the precision of fp32 products and the adapters' scale keep their
    configured values, in a resumed run too. A loop evaluates a model with dropout in eval mode.
    """

    needs = frozenset({Premise.ADAPTERS_ENUMERATED})
    meaning = f"""{NEVER_TRAINING} {NEVER_EVAL} {LEFT_IN_EVAL} {UNCALIBRATED} {TEACHER_TRAINING} An evaluation, a
    generation, a save, a resume or a callback changed the model and did not restore it. It left eval mode on, adapters
    disabled, merged or replaced, or a requires_grad flag or torch switch changed."""
    remedy = "Call model.train() before training and after evaluations. Check what runs before the named step."

    min_quiet: int = 8
    """Batches that a loop trains without dropout at its end, after it trained with dropout before."""

    def judge(self, trace: Trace) -> Finding:
        steps = _last_of_each_step(trace.all(evidence.TrainingState))
        trained = {step.step for step in trace.records(evidence.Step)}  # none where the first step ends in an error
        missing = sorted(trained - {state.step for state in steps if state.forwards > 0})
        problems = [f"no forward pass was recorded in steps {some([str(step) for step in missing])}"] if missing else []
        if missing and len(missing) == len(trained) and not trace.holds(Premise.INTENT_DECLARED):
            raise NotApplicable("its steps end before its forward pass, or another module calls its layers")
        if wrong := _wrong_steps(steps):
            first = min(wrong)
            problems.append(f"wrong in {len(wrong)} of {len(steps)} steps, first in step {first}: {wrong[first]}")
        for attempt in trace.made_for(evidence.AttemptPurpose.RESUME):
            if again := _wrong_steps(attempt.all(evidence.TrainingState)):
                problems.append(f"after the resume, first in step {min(again)}: {again[min(again)]}")
        if not problems:
            trace.all(evidence.Step)  # raises where no step was trained
        forwards = sum(state.forwards for state in steps)
        detail = "; ".join(problems) or f"{forwards} forward passes of {len(steps)} steps"
        if not problems and all(state.dropping_nothing for state in steps):
            detail += f", all in eval mode, which disables dropout: {some(steps[0].dropping_nothing)}"
            return self.at_most(len(steps), 0, detail, meant=WITHOUT_DROPOUT, causes=[NEVER_TRAINING])
        if not problems and all(state.uncalibrated for state in steps):
            detail += f", in which {some(steps[0].uncalibrated)} normalise by their first statistics, of no batch"
            return self.at_most(len(steps[0].uncalibrated), 0, detail, meant=WITHOUT_STATISTICS, causes=[UNCALIBRATED])
        if (noisy := [seen for seen in trace.records(evidence.OtherModelDrops) if not seen.drawn]) and not problems:
            others, does = [seen.model for seen in noisy], {seen.normalises for seen in noisy}
            detail += f"; {some(others)} learns nothing, is called in train mode, and "
            detail += "normalises by its batch" if does == {True} else "draws dropout"
            return self.at_most(len(others), 0, detail, meant=NOISY_TEACHER, causes=[TEACHER_TRAINING])
        evaluated = trace.records(evidence.LoopEvaluations)
        every = sum(own.dropping for own in evaluated) == sum(own.passes for own in evaluated)
        if every and not problems and (passes := max((own.passes for own in evaluated), default=0)):
            detail += f"; all {passes} passes without gradients are in train mode, which drops or takes new statistics"
            return self.at_most(passes, 0, detail, meant=NOISY_EVALUATION, causes=[NEVER_EVAL])
        quiet = [(own.quiet_at_the_end, own.learnt) for own in evaluated if own.quiet_at_the_end < own.learnt]
        last, learnt = max(quiet, default=(0, 0))
        if last >= self.min_quiet and not problems:
            detail += f"; the last {last} of {learnt} batches of the training dropped nothing and took no statistics"
            return self.at_most(last, 0, detail, meant=QUIET_PHASE, causes=[LEFT_IN_EVAL])
        never = all([how for names, how in _switches(state) if names] == [IN_EVAL] for state in steps)
        only = len(problems) == 1 and never
        # a policy's new likelihoods and the old ones are those of one function only without dropout
        policy = any(seen.ratios for seen in trace.records(evidence.ScoresGiven))
        meant = WITHOUT_DROPOUT if only and policy and not trace.holds(Premise.STEP_DECLARED) else ""
        return self.at_most(len(problems), 0, detail, compared=forwards, meant=meant, causes=[NEVER_TRAINING] * only)


def _last_of_each_step(states: Iterable[evidence.TrainingState]) -> list[evidence.TrainingState]:
    """Return what holds of each step: one that may end in an error is recorded before its end, too."""
    return list({state.step: state for state in states}.values())


def _wrong_steps(states: Iterable[evidence.TrainingState]) -> dict[int, str]:
    wrong = {}
    for state in _last_of_each_step(states):
        root = ("the model",)  # as it is called among its modules
        if switched := [(some(root if root[0] in names else names), how) for names, how in _switches(state) if names]:
            wrong[state.step] = "; ".join(f"{names} {how}".rstrip() for names, how in switched)
    return wrong


def _switches(state: evidence.TrainingState) -> Iterator[tuple[tuple[str, ...], str]]:
    yield state.modules_in_eval, IN_EVAL
    yield state.adapters_disabled, "with adapters disabled"
    yield state.adapters_inactive, "with a different active adapter"
    yield state.adapters_merged, "with a merged adapter"
    yield state.frozen, "not requiring a gradient"
    yield state.unfrozen, "requiring a gradient, but frozen by the configuration"
    yield state.settings, ""


TENSORS_COUNTED = "Tensors were counted, not their elements."


class ParametersCounted(Check):
    """The trained and the total number of parameters equal the arithmetic of the configured shapes."""

    needs = frozenset({Premise.COUNT_DECLARED})
    convention = "a model may be changed after it was built from its configuration"
    meaning = f"{TENSORS_COUNTED} An adapter has another rank. Layers are missing. A tied matrix exists twice."
    remedy = "Compare with `tunecheck strategies MODEL`. Check the number of layers and the tied head."

    def judge(self, trace: Trace) -> Finding:
        censuses = trace.all(evidence.Census)
        if (wanted := censuses[0].expected_parameters) is None:
            raise NotApplicable("the parameter count of this architecture is not known")
        added = trace.run.added if trace.run.added is not None else wanted
        base = recorded(trace.run.parameters, "the header of the trace lacks model.parameters")
        total = base + (added if trace.run.lora else 0)
        problems = said_once((c.when, *wrong) for c in censuses for wrong in _counted_wrongly(c, wanted, total))
        detail = "; ".join(problems) or f"{wanted:,} of {total:,} parameters in {len(censuses[-1].trainable)} tensors"
        trained = censuses[-1].trainable_parameters
        return self.found(trained == wanted, detail, measured=trained, limit=wanted, problems=problems, compared=wanted)


def _counted_wrongly(census: evidence.Census, wanted: int, total: int) -> Iterator[tuple[str, str]]:
    if (trained := census.trainable_parameters) != wanted and trained == len(census.trainable):
        yield f"{trained:,} trained, which is the number of tensors, {wanted:,} by arithmetic", TENSORS_COUNTED
    elif trained != wanted:
        yield f"{trained:,} trained, {wanted:,} by arithmetic", ""
    if census.total_parameters != total:
        yield f"{census.total_parameters:,} in all, {total:,} by arithmetic", ""


class QuantizationAsConfigured(Check):
    """Every decoder linear is 4-bit with the configured type, block size and double quantisation; the head is not.

    Quantising the smallest linears again from the file gives the same bytes. No linear keeps its unpacked weight for
    the backward pass.
    """

    needs = frozenset({"quantized", Premise.CAUSAL_LM})
    meaning = """Some or all layers bypassed 4-bit loading. The quantisation type differs from the configured one. A
    product keeps the weight that it unpacks, which costs the memory that 4 bit should save."""
    remedy = "Pass a quantization config to from_pretrained, with type and compute dtype: defaults are fp4 and fp32."

    def judge(self, trace: Trace) -> Finding:
        seen, wanted = trace.one(evidence.Quantization), recorded(trace.run.quantization, "the run has no quantization")
        expected, got = set(seen.expected_modules), set(seen.quantized_modules)
        missing, extra, due = sorted(expected - got), sorted(got - expected), len(expected)
        settings = (
            ("type", seen.quant_types, wanted.quant_type),
            ("block size", seen.block_sizes, wanted.block_size),
            ("double quantisation", seen.double_quant, wanted.double_quant),
        )
        sizes = f"{seen.packed_bytes:,} bytes packed, {seen.expected_bytes:,} by arithmetic"
        other, kept = seen.requantized_differing, seen.unpacked_kept
        again = f"quantising the file's weights again gives other bytes: {some(other) or 'none could be compared'}"
        wrong = {
            f"{len(missing)} of {due} linears are not 4-bit: {some(missing)}": missing,
            f"4-bit, but not configured: {some(extra)}": extra,
            **{f"{what} {counts}, configured {value}": {*counts} - {str(value)} for what, counts, value in settings},
            sizes: seen.packed_bytes != seen.expected_bytes,
            again: seen.requantized == 0 or other,
            f"unpacked weights are kept for the backward pass: {some(kept)}": kept,
        }
        problems = holding(wrong)
        detail = "; ".join(problems) or f"{len(got)} linears, {seen.packed_bytes:,} bytes, equal to the arithmetic"
        return self.found(len(got) == due, detail, measured=len(got), limit=due, problems=problems, compared=len(got))


UNTRAINED_TOKENS = "Added tokens keep random embeddings: name them in trainable_token_indices, or in modules_to_save."


class BaseMatchesFile(Check):
    """Every base tensor equals the file's within the quantisation error; rotary buffers and tied head are right.

    Any other model of transformers, and one within the script's own, holds some values of its configuration's file.
    """

    needs = frozenset({Premise.CAUSAL_LM, Premise.ARCHITECTURE_KNOWN, Premise.BASE_FROM_FILE, Premise.BASE_PLAIN})
    convention = "weights may be changed after loading, as where a layer begins anew"
    meaning = f"""Weights were not loaded, were loaded into the wrong place, or were overwritten by a later
    initialisation. Generated text is then noise. {NO_WEIGHTS} {UNTRAINED_TOKENS} {CAST}"""
    remedy = """Load the model by from_pretrained. Compare the named tensors with the file. Update transformers. Do not
    call init_weights after loading."""

    max_error_nf4: float = 0.14
    """Relative error of an nf4 tensor in blocks of 64: 0.091 to 0.113 over the 210 tensors of SmolLM2-135M, 24 rows of
    each."""
    max_error_fp4: float = 0.18
    """The same for fp4, whose error on normal weights is 0.124."""

    def _asked(self, trace: Trace) -> Finding:
        """Return the finding; of a model that is not compared in full, and of a part, that it was never loaded."""
        drawn = trace.records(evidence.WeightsDrawn) if trace.why(self.needs) else []
        if not drawn or any(load.taken for load in trace.records(evidence.StateLoaded)):
            return super()._asked(trace)
        told = [f"none of {own.tensors} matrices of the {own.model} has its values in {own.folder}" for own in drawn]
        found = self.at_most(len(drawn), 0, "; ".join(told), meant=FROM_SCRATCH, causes=[NO_WEIGHTS])
        return self._weighed(found, trace)

    def judge(self, trace: Trace) -> Finding:
        seen = trace.one(evidence.BaseFidelity)
        differing, buffers, head = seen.differing, seen.buffers_differing, "tied" if seen.tied else "not tied"
        wrong = {
            f"{len(differing)} of {seen.tensors} tensors differ from the file: {some(differing)}": differing,
            f"rotary buffers differ from their closed form: {some(buffers)}": buffers,
            f"the head is {head} to the embedding, unlike in the configuration": seen.tied != seen.tied_expected,
        }
        limit, largest = 0.0, seen.weight_errors.get("largest", 0.0)
        if seen.weight_errors:
            fp4 = trace.run.quantization is not None and trace.run.quantization.quant_type == "fp4"
            limit = self.max_error_fp4 if fp4 else self.max_error_nf4
            wrong[f"{seen.worst_weight} differs from the file by {largest:.3f} of its norm"] = not largest <= limit
        causes = {evidence.NEW_TOKENS_FROZEN: UNTRAINED_TOKENS, "rotary": CAST * seen.buffers_cast}
        problems = {told: next((causes[words] for words in causes if words in told), "") for told in holding(wrong)}
        detail = "; ".join(problems) or f"{seen.tensors} tensors compared"
        meant = FROM_SCRATCH if 0 < seen.tensors == len(differing) else ""
        return self.at_most(largest, limit, detail, problems=problems, compared=seen.tensors, meant=meant)


class KernelAgrees(NumericCheck):
    """A quantised linear multiplies by its dequantised weight, in the output and in the input gradient.

    Independent code dequantises that weight.
    """

    needs = frozenset({"quantized", Premise.CAUSAL_LM, Premise.BASE_PLAIN})
    meaning = """The 4-bit kernel is wrong on this device or for this shape, such as bitsandbytes 0.50 on CPUs after an
    evaluation. Or its backward pass is wrong, which dequantises by another path."""
    remedy = "Update bitsandbytes. Try another block size. Run tunecheck doctor to see which native library is loaded."

    max_error_fp32: float = 1e-4  # on a CPU, 3e-7 measured for the product and 4e-7 for the gradient
    max_error_16bit: float = 2e-2

    def judge(self, trace: Trace) -> Finding:
        seen = trace.one(evidence.Quantization)
        # the kernel is handed rows of the run's precision, and what a script's kernel computes in is declared apart
        fp32 = trace.one(evidence.Setup).precision == "fp32" and seen.compute_dtypes.keys() <= {"float32"}
        where = seen.kernel_error_at
        detail = f"largest relative error at {where}" if where else "no error in any shape"
        return self.at_most(seen.kernel_error, self.max_error_fp32 if fp32 else self.max_error_16bit, detail)


class BaseUntouched(Check):
    """Every frozen tensor keeps its bytes, including quantisation statistics and buffers."""

    needs = frozenset({"frozen", Premise.BASE_UNWRITTEN})
    meaning = "The base was trained, repacked or merged into. Or memory was corrupted."
    remedy = "If an evaluation changed all quantised tensors, suspect a repacking kernel. If one, suspect hardware."

    def judge(self, trace: Trace) -> Finding:
        seen = trace.one(evidence.Movement)
        at_end = seen.frozen_changed
        detail = f"{len(at_end)} of {seen.frozen_tensors} frozen tensors changed"
        detail += f": {some(at_end)}" if at_end else f" ({seen.frozen_bytes:,} bytes compared)"
        during = dict(pair for held in trace.records(evidence.Continuity) for pair in held.frozen_changed.items())
        if passing := during.keys() - set(at_end):
            detail += f"; changed during training and restored at the end: {some(_with_steps(during, passing))}"
        return self.at_most(len({*during, *at_end}), 0, detail, compared=seen.frozen_tensors)


class WeightsChangeOnlyInSteps(Check):
    """Trained weights change only in optimizer steps."""

    needs = frozenset({Premise.TRAINED_UNWRITTEN})
    meaning = "An evaluation, a save or a callback wrote to trained weights: an average, a cast, or older weights."
    remedy = "Check what runs before the step that the finding names, and make it work on a copy."

    def judge(self, trace: Trace) -> Finding:
        if trace.run.training.offloads_parameters:
            raise NotApplicable("not compared: gathering offloaded parameters would cost more than a step")
        seen = trace.one(evidence.Continuity)
        changed = seen.trained_changed
        lines = {name: line for own in trace.records(evidence.WrittenByScript) for name, line in own.lines.items()}
        if changed and changed.keys() <= lines.keys():
            first = min(changed, key=changed.__getitem__)
            where = f"{lines[first]} writes to trained tensors between steps, first before step {changed[first]}"
            raise NotApplicable(f"{where}: only its author knows whether this is intended")
        detail = f"{len(changed)} of {seen.trained} trained tensors changed outside of a step"
        detail += f": {some(_with_steps(changed, changed))}" if changed else f", {seen.moments} times compared"
        return self.at_most(len(changed), 0, detail, compared=seen.trained)


def _with_steps(changed: Mapping[str, int], names: Iterable[str]) -> list[str]:
    return [f"{name} before step {changed[name]}" for name in sorted(names)]


class WeightsInUse(NumericCheck):
    """After training, each trained linear, norm and embedding computes with its current tensors."""

    needs = frozenset({"trains_base", Premise.CAUSAL_LM, Premise.FORWARD_REPEATABLE})
    meaning = """The forward pass uses a copy of a weight, in another dtype, fused or merged, which misses the updates.
    A module is skipped, or omits its bias. Another adapter is active than the trained one."""
    remedy = "Find what replaced the forward of the named module, and when that refreshes its copy of the weight."

    max_error_fp32: float = 1e-4
    """Rounding gives 1e-6. With all trained tensors halved, a stale copy is off by 1."""
    max_error_16bit: float = 5e-2

    def judge(self, trace: Trace) -> Finding:
        seen, limit = trace.one(evidence.CurrentWeights), self.limit(trace)
        if not seen.modules and (why := trace.why({Premise.PRODUCTS_KNOWN})):
            raise NotApplicable(why)
        detail = f"worst of {seen.modules} trained modules: {seen.worst}, off by {seen.error:.3g} of its product"
        return self.at_most(seen.error, limit, detail, compared=seen.modules)


def by_layer(names: Iterable[str]) -> str:
    """Return all of these names, those of the layers that have the same ones together: "layers.0-3: q_proj, v_proj"."""
    found = (re.match(r"(.*?)(?:\.(\d+)\.(.*))?$", name).groups("") for name in names)  # type: ignore[union-attr]
    layers = grouped(((before, behind), number) for before, number, behind in found)
    named = ((f"{before}.{_ranges(at)}" if at[0] else before, behind) for (before, behind), at in layers.items())
    return "; ".join(f"{where}: {', '.join(parts)}" if parts[0] else where for where, parts in grouped(named).items())


def _ranges(numbers: Iterable[str]) -> str:
    """Return whole numbers as ranges: "0-3,7"."""
    rows = groupby(enumerate(sorted(set(map(int, numbers)))), lambda pair: pair[1] - pair[0])
    runs = ([number for _, number in row] for _, row in rows)
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def told_apart(names: Sequence[str], others: Sequence[str]) -> str:
    """Return the shortest part of a name, as a regular expression, that all of these have and no other has, or ""."""
    words = names[0].split(".")
    for length in (1, 2, 3):
        for at in range(len(words) - length + 1):
            if words[at].isdigit():  # of a layer nobody can tell of which part
                continue
            part = ".".join(words[at : at + length])
            part = re.escape(f"{part}." if part[-1:].isdigit() else part)
            if all(re.search(part, name) for name in names) and not any(re.search(part, other) for other in others):
                return part
    return ""
