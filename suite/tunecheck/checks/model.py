"""The model as it is built and as it stays: trainable set, quantisation, weights against their file."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from tunecheck.core.check import NOTHING_TRAINABLE, Check, NumericCheck, nothing_trainable, some
from tunecheck.core.errors import MissingEvidence
from tunecheck.core.evidence import (
    AttemptPurpose,
    BaseFidelity,
    Census,
    Continuity,
    CurrentWeights,
    Movement,
    Quantization,
    Setup,
    Step,
    TrainingState,
    WrittenByScript,
)
from tunecheck.core.finding import Finding
from tunecheck.core.premises import Premise
from tunecheck.core.trace import Trace

WRAPPER = "base_model.model."
"""What peft puts before the name of each tensor of the model that it adapts."""


class TrainableSet(Check):
    """The tensors that require a gradient are those enumerated from the configuration, at every census."""

    premises = frozenset({Premise.TRAINED_SET_DECLARED, Premise.ADAPTERS_ENUMERATED})
    meaning = (
        "adapters are missing in some layers, frozen by a helper, or the base was unfrozen, often by a substring "
        "match on layer names; or get_peft_model was called twice, as where SFTTrainer is given a peft_config besides; "
        "or a classifier's head, which no base has, is left frozen as it was drawn, since no task_type names the task"
    )
    remedy = (
        "compare target_modules and layer numbers with the names below; look for requires_grad_ and set_adapter calls; "
        "give the task_type, or name the head in modules_to_save"
    )

    def judge(self, trace: Trace) -> Finding:
        problems = []
        differing = twice = {name for name in trace.all(Census)[0].trainable if name.count(WRAPPER) > 1}
        if twice:
            problems.append(f"get_peft_model was given a model that has adapters already: {some(sorted(twice), 1)}")
        for census in trace.all(Census):
            wanted, got = set(census.expected_trainable), set(census.trainable)
            differing = differing | (wanted ^ got)
            if missing := sorted(wanted - got):
                problems.append(f"{census.when}: {len(missing)} of {len(wanted)} not trainable: {by_layer(missing)}")
                problems[-1] += _declaration(trace, missing, sorted(got))
            if extra := sorted(got - wanted):
                problems.append(f"{census.when}: {len(extra)} trainable that should not be: {some(extra)}")
        census = trace.one(Census)
        share = census.trainable_parameters / max(1, census.total_parameters)
        numbers = f"{census.trainable_parameters:,} of {census.total_parameters:,} parameters trainable ({share:.2%})"
        if nothing_trainable(trace) and not differing:
            return self.found(False, f"{NOTHING_TRAINABLE} ({numbers})", measured=0, limit="at least 1")
        if not differing and trace.run.lora is not None and (lost := trace.run.lora.unmatched):
            detail = f"no module has the name {' or '.join(lost)}, which the adapters' configuration has; {numbers}"
            return self.found(False, detail, measured=len(lost), limit=0, meant=NAMES_OF_OTHERS)
        return self.found(not differing, "; ".join([*problems, numbers]), measured=len(differing), limit=0)


def _declaration(trace: Trace, missing: Sequence[str], others: Sequence[str]) -> str:
    """Return by which expectation a watched script declares that these rest, as a clause; "" for a run of the suite."""
    if "watched" not in trace.run.features:
        return ""
    return f"; where that is meant, declare it by --expect 'frozen={told_apart(missing, others) or 'REGEX'}'"


NAMES_OF_OTHERS = "one list of names may serve models of several architectures"
WITHOUT_DROPOUT = "a policy, or a model that is small beside its data, may be trained in eval mode to drop nothing"


class StateInTraining(Check):
    """At every forward pass of every step the model is in train mode, adapters are on and gradients are required.

    Autocast, attention, gradient checkpointing, the precision of fp32 products and the adapters' scale are the
    configured ones throughout, in a resumed run too.
    """

    premises = frozenset({Premise.ADAPTERS_ENUMERATED})
    meaning = (
        "an evaluation, a generation, a save, a resume or a callback in the middle of the run left the model in eval "
        "mode, its adapters disabled, merged or exchanged, requires_grad or one of torch's own switches changed"
    )
    remedy = "call model.train() when an evaluation returns; look at what ran just before the first step below"

    def judge(self, trace: Trace) -> Finding:
        steps = trace.all(TrainingState)
        trained = {step.step for step in trace.main.all(Step)}  # none where the first step ends in an error
        missing = sorted(trained - {state.step for state in steps if state.forwards > 0})
        problems = [f"no forward pass seen in steps {some([str(step) for step in missing])}"] if missing else []
        wrong = _wrong_steps(steps)
        if wrong:
            first = min(wrong)
            seen = len({state.step for state in steps})
            problems.append(f"wrong in {len(wrong)} of {seen} steps, first in step {first}: {wrong[first]}")
        for attempt in trace.attempts:
            if attempt.start.purpose == AttemptPurpose.RESUME and (again := _wrong_steps(attempt.all(TrainingState))):
                problems.append(f"after the resume, first in step {min(again)}: {again[min(again)]}")
        if not problems:
            trace.all(Step)  # raises where no step was trained
        forwards = sum(state.forwards for state in steps)
        detail = "; ".join(problems) or f"{forwards} forward passes of {len(steps)} steps"
        if not problems and all(state.dropping_nothing for state in steps):
            detail += f", each in eval mode, so that nothing is dropped: {some(steps[0].dropping_nothing)}"
            return self.found(False, detail, measured=len(steps), limit=0, meant=WITHOUT_DROPOUT)
        return self.found(not problems, detail, measured=len(problems), limit=0, compared=forwards)


def _wrong_steps(states: Iterable[TrainingState]) -> dict[int, str]:
    """Return the steps in which something is switched wrongly, and what."""
    return {
        state.step: told
        for state in states
        if (told := "; ".join(f"{some(names)} {words}".rstrip() for names, words in _switches(state) if names))
    }


def _switches(state: TrainingState) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the names of what is switched wrongly in a step, and how."""
    yield state.modules_in_eval, "in eval mode"
    yield state.adapters_disabled, "with adapters disabled"
    yield state.adapters_inactive, "with another active adapter"
    yield state.adapters_merged, "with a merged adapter"
    yield state.frozen, "not requiring a gradient"
    yield state.unfrozen, "requiring a gradient though frozen by the configuration"
    yield state.settings, ""


class ParametersCounted(Check):
    """The numbers of trained parameters and of all parameters are those of the configuration's shapes by arithmetic."""

    premises = frozenset({Premise.COUNT_DECLARED})
    meaning = (
        "tensors were counted as parameters, an adapter has another rank than the configured one, layers are missing, "
        "or a tied matrix exists twice"
    )
    remedy = (
        "count elements, not tensors; compare with `tunecheck strategies MODEL`, and the number of layers and the tied "
        "head with the model's configuration"
    )

    def judge(self, trace: Trace) -> Finding:
        censuses = trace.all(Census)
        wanted = censuses[0].expected_parameters
        if wanted is None:
            return self.unjudged("the shapes of this architecture are not known by arithmetic", expected=True)
        added = trace.run.added if trace.run.added is not None else wanted
        total = _base_parameters(trace) + (added if trace.run.lora else 0)
        problems = []
        for census in censuses:
            if census.trainable_parameters != wanted:
                counted = census.trainable_parameters == len(census.trainable)
                hint = ", which is the number of tensors" if counted else ""
                problems.append(
                    f"{census.when}: {census.trainable_parameters:,} trained{hint}, {wanted:,} by arithmetic"
                )
            if census.total_parameters != total:
                problems.append(f"{census.when}: {census.total_parameters:,} in all, {total:,} by arithmetic")
        last = censuses[-1]
        detail = "; ".join(problems) or f"{wanted:,} of {total:,} parameters in {len(last.trainable)} tensors"
        trained = last.trainable_parameters
        return self.found(trained == wanted, detail, measured=trained, limit=wanted, problems=problems, compared=wanted)


def _base_parameters(trace: Trace) -> int:
    """Return the number of the base's parameters. Raises MissingEvidence where the header lacks it."""
    if (parameters := trace.run.model.parameters) is None:
        raise MissingEvidence("the header of the trace lacks model.parameters")
    return parameters


class QuantizationAsConfigured(Check):
    """Every linear of the decoder is 4-bit with the configured type, block and double quantisation; the head is not.

    Those of the smallest shape, quantised once more from the file, have the same bytes, and none is kept unpacked for
    the backward pass.
    """

    applies_to = frozenset({"quantized"})
    meaning = (
        "4-bit loading was bypassed for some or all layers, another type than the configured one was used, or a "
        "product keeps the weight that it unpacked, and with it the memory that 4 bit should save"
    )
    remedy = "pass the quantization config to from_pretrained; bitsandbytes' own defaults are fp4 and fp32"

    def judge(self, trace: Trace) -> Finding:
        seen, wanted = trace.one(Quantization), trace.run.quantization
        if wanted is None:
            raise MissingEvidence("the run has no quantization")
        expected, got = set(seen.expected_modules), set(seen.quantized_modules)
        problems = []
        if missing := sorted(expected - got):
            problems.append(f"{len(missing)} of {len(expected)} linears are not 4-bit: {some(missing)}")
        if extra := sorted(got - expected):
            problems.append(f"4-bit though they should not be: {some(extra)}")
        for what, counts, value in (
            ("type", seen.quant_types, wanted.quant_type),
            ("block size", seen.block_sizes, wanted.block_size),
            ("double quantisation", seen.double_quant, wanted.double_quant),
        ):
            if counts.keys() - {str(value)}:
                problems.append(f"{what} {counts}, configured {value}")
        if seen.packed_bytes != seen.expected_bytes:
            problems.append(f"{seen.packed_bytes:,} bytes packed, {seen.expected_bytes:,} by arithmetic")
        if seen.requantized == 0 or seen.requantized_differing:
            names = some(seen.requantized_differing) or "none could be compared"
            problems.append(f"not what quantising the file's weights once more gives: {names}")
        if seen.unpacked_kept:
            problems.append(f"unpacked weights are kept for the backward pass: {some(seen.unpacked_kept)}")
        detail = "; ".join(problems) or f"{len(got)} linears, {seen.packed_bytes:,} bytes as by arithmetic"
        all_there = len(got) == len(expected)
        return self.found(
            all_there, detail, measured=len(got), limit=len(expected), problems=problems, compared=len(got)
        )


class BaseMatchesFile(Check):
    """Every base tensor is the file's, quantised ones within their error; rotary buffers and tied head are right."""

    premises = frozenset({Premise.ARCHITECTURE_KNOWN, Premise.CAUSAL_LM, Premise.BASE_FROM_FILE, Premise.BASE_PLAIN})
    meaning = (
        "weights were not loaded, overwritten by an initialisation after loading, or loaded into the wrong "
        "place; generated text is noise"
    )
    remedy = (
        "compare the tensors named below with the file; update transformers; do not call init_weights after "
        "from_pretrained"
    )

    max_error_nf4: float = 0.14
    """Relative error of an nf4 tensor in blocks of 64: 0.091 to 0.113 over the 210 of SmolLM2-135M, 24 rows of each."""
    max_error_fp4: float = 0.18
    """The same for fp4, whose error on normal weights is 0.124."""

    def judge(self, trace: Trace) -> Finding:
        seen = trace.one(BaseFidelity)
        problems = []
        if seen.differing:
            problems.append(
                f"{len(seen.differing)} of {seen.tensors} tensors are not the file's: {some(seen.differing)}"
            )
        if seen.buffers_differing:
            problems.append(f"rotary buffers are not their closed form: {some(seen.buffers_differing)}")
        if seen.tied != seen.tied_expected:
            problems.append(
                f"the head is {'tied' if seen.tied else 'not tied'} to the embedding, the configuration says otherwise"
            )
        largest = seen.weight_errors.get("largest")
        limit, within = None, True
        if largest is not None:
            fp4 = trace.run.quantization is not None and trace.run.quantization.quant_type == "fp4"
            limit = self.max_error_fp4 if fp4 else self.max_error_nf4
            if not (within := largest <= limit):
                problems.append(f"{seen.worst_weight} differs from the file by {largest:.3f} of its norm")
        detail = "; ".join(problems) or f"{seen.tensors} tensors compared"
        unwitnessed = WITHOUT_WITNESS if len(seen.differing) == seen.tensors > 1 else ""
        return self.found(
            within,
            detail,
            measured=largest,
            limit=limit,
            problems=problems,
            compared=seen.tensors,
            meant=unwitnessed,
        )


WITHOUT_WITNESS = (
    "not one tensor is the file's: a loader may rename or convert them all, or the file is another model's"
)
"""Why a reference that was right nowhere in this training proves nothing."""


class KernelAgrees(NumericCheck):
    """A quantised linear's output and input gradient are products with the weight as other code dequantises it."""

    premises = frozenset({Premise.CAUSAL_LM, Premise.BASE_PLAIN})
    applies_to = frozenset({"quantized"})
    meaning = (
        "the 4-bit kernel is wrong on this device or for this shape (bitsandbytes 0.50 on CPUs after an "
        "evaluation, say), or its backward pass is: that dequantises by another path"
    )
    remedy = "update bitsandbytes; try another block size; run tunecheck doctor to see which native library was loaded"

    max_error_fp32: float = 1e-4  # 3e-7 measured on this kind of product, CPU; of the gradient 4e-7
    max_error_16bit: float = 2e-2

    def judge(self, trace: Trace) -> Finding:
        seen = trace.one(Quantization)
        # the kernel is handed rows of the run's precision, and what a script's kernel computes in is declared apart
        fp32 = trace.one(Setup).precision == "fp32" and seen.compute_dtypes.keys() <= {"float32"}
        limit = self.max_error_fp32 if fp32 else self.max_error_16bit
        detail = (
            f"largest relative error at {seen.kernel_error_at}" if seen.kernel_error_at else "no error in any shape"
        )
        return self.found(seen.kernel_error <= limit, detail, measured=seen.kernel_error, limit=limit)


class BaseUntouched(Check):
    """Every frozen tensor, quantisation statistics and buffers included, has the bytes it had before training."""

    premises = frozenset({Premise.BASE_UNWRITTEN})
    applies_to = frozenset({"frozen"})
    meaning = "the base was trained, repacked or merged into, or memory was corrupted"
    remedy = (
        "look at the tensors below: all quantised ones after an evaluation means a kernel's repacking, a "
        "single one means hardware"
    )

    def judge(self, trace: Trace) -> Finding:
        seen = trace.one(Movement)
        detail = f"{len(seen.frozen_changed)} of {seen.frozen_tensors} frozen tensors changed"
        detail += (
            f": {some(seen.frozen_changed)}" if seen.frozen_changed else f" ({seen.frozen_bytes:,} bytes compared)"
        )
        during = {name: step for held in trace.main.all(Continuity) for name, step in held.frozen_changed.items()}
        if passing := during.keys() - set(seen.frozen_changed):
            detail += f"; changed in the middle and right again at the end: {some(_with_steps(during, passing))}"
        changed = during.keys() | set(seen.frozen_changed)
        return self.found(not changed, detail, measured=len(changed), limit=0, compared=seen.frozen_tensors)


class WeightsChangeOnlyInSteps(Check):
    """What learns changes in optimizer steps alone: not between them, in an evaluation, a save or a forward pass."""

    premises = frozenset({Premise.TRAINED_UNWRITTEN})
    meaning = (
        "an evaluation, a save or a callback wrote into the trained weights: averaged ones put in their place, a cast "
        "to 16 bit and back, weights of another step"
    )
    remedy = "look at what ran before the step below; let it work on a copy"

    def judge(self, trace: Trace) -> Finding:
        if trace.run.training.offloads_parameters:
            return self.unjudged(
                "not looked at: gathering offloaded parameters would cost more than a step", expected=True
            )
        seen = trace.one(Continuity)
        changed = seen.trained_changed
        lines = {name: line for own in trace.main.all(WrittenByScript) for name, line in own.lines.items()}
        if changed and changed.keys() <= lines.keys():
            first = min(changed, key=changed.__getitem__)
            return self.unjudged(
                f"{lines[first]} writes to trained tensors between steps, first by step {changed[first]}: "
                "whether it is meant to is known to the script alone",
                expected=True,
            )
        detail = f"{len(changed)} of {seen.trained} trained tensors changed outside of a step"
        detail += f": {some(_with_steps(changed, changed))}" if changed else f", {seen.moments} times compared"
        return self.found(not changed, detail, measured=len(changed), limit=0, compared=seen.trained)


def _with_steps(changed: Mapping[str, int], names: Iterable[str]) -> list[str]:
    """Return the names with the steps in or before which they first changed."""
    return [f"{name} by step {changed[name]}" for name in sorted(names)]


class WeightsInUse(NumericCheck):
    """After training, each trained linear, norm and embedding computes with its current tensors."""

    premises = frozenset({Premise.CAUSAL_LM, Premise.FORWARD_REPEATABLE})
    applies_to = frozenset({"trains_base"})
    meaning = (
        "the forward pass uses a copy of a weight in another dtype, or a fused or merged matrix, which misses the "
        "updates; or a module is skipped, or leaves out its bias; or another adapter is active than what is trained"
    )
    remedy = "look at the module below: what replaced its forward, and when is its copy of the weight refreshed?"

    max_error_fp32: float = 1e-4
    """Rounding gives 1e-6; with all trained tensors halved an old copy is off by 1."""
    max_error_16bit: float = 5e-2

    def judge(self, trace: Trace) -> Finding:
        seen, limit = trace.one(CurrentWeights), self.limit(trace)
        if not seen.modules and "watched" in trace.run.features:  # adapters of a kind whose product is not known
            return self.unjudged("no module with a trained weight has a product that is known here", expected=True)
        detail = f"worst of {seen.modules} trained modules: {seen.worst}, off by {seen.error:.3g} of its product"
        return self.found(seen.error <= limit, detail, measured=seen.error, limit=limit, compared=seen.modules)


LONGEST_PART = 3
"""Words between dots by which tensors are told apart."""


def by_layer(names: Iterable[str]) -> str:
    """Return all of these names, those of the layers that have the same ones together: "layers.0-3: q_proj, v_proj"."""
    layers: dict[tuple[str, str], list[int]] = {}
    for name in names:
        before, number, behind = re.match(r"(.*?)(?:\.(\d+)\.(.*))?$", name).groups()  # type: ignore[union-attr]
        layers.setdefault((before, behind or ""), []).extend([] if number is None else [int(number)])
    together: dict[str, list[str]] = {}
    for (before, behind), numbers in layers.items():
        together.setdefault(f"{before}.{_ranges(numbers)}" if numbers else before, []).append(behind)
    return "; ".join(f"{where}: {', '.join(parts)}" if parts[0] else where for where, parts in together.items())


def _ranges(numbers: Iterable[int]) -> str:
    """Return whole numbers as ranges: "0-3,7"."""
    runs = []
    for _, run in groupby(enumerate(sorted(set(numbers))), lambda pair: pair[1] - pair[0]):
        held = [number for _, number in run]
        runs.append(str(held[0]) if len(held) == 1 else f"{held[0]}-{held[-1]}")
    return ",".join(runs)


def told_apart(names: Sequence[str], others: Sequence[str]) -> str:
    """Return the shortest part of a name, as a regular expression, that all of these have and none of the others.

    "" where there is none.
    """
    words = names[0].split(".")
    for length in range(1, LONGEST_PART + 1):
        for at in range(len(words) - length + 1):
            if words[at].isdigit():  # of a layer nobody can tell of which part
                continue
            part = ".".join(words[at : at + length])
            part = re.escape(f"{part}." if part[-1:].isdigit() else part)
            if all(re.search(part, name) for name in names) and not any(re.search(part, other) for other in others):
                return part
    return ""
