"""Memory during the run and after it: leaks, ceilings, what settings save, and the fallback where it runs out."""

from itertools import pairwise

from tunecheck.checks.telemetry import MIB, card_memory, on_gpu, other_gpu_processes, telemetry
from tunecheck.core import evidence
from tunecheck.core.check import Check, recorded, required, worst_of
from tunecheck.core.errors import MissingEvidence
from tunecheck.core.finding import Finding
from tunecheck.core.premises import Premise
from tunecheck.core.trace import Attempt, Trace
from tunecheck.core.trend import trend

LOSSES_ADDED = "A sum of losses is kept with its graph: total += loss, without item() or detach()."
LATE = "an optimizer first stepped between two samples, and its loop brings fewer tensors than it trains"
LONG_GRAPH = "an objective may reach over many steps, or a sum be emptied with the next epoch"
ALLOCATOR_ERROR = "OutOfMemoryError:"
"""How a probe's failure begins when torch's allocator raised it, the only kind of which torch keeps a count."""


class LiveTensorsFlat(Check):
    """The number of live tensors and of hooks is constant at the same point of each sampled step.

    The graphs of earlier steps are freed.
    """

    needs = frozenset({"several_steps"})
    convention = "a script may collect tensors, such as a memory of features or an episode's moves"
    meaning = f"""{LOSSES_ADDED} A list keeps losses, logits or outputs with their graph. An evaluation keeps its
    results. Hooks are registered repeatedly."""
    remedy = "Detach everything that is kept: loss.detach(), or float(loss) at the end of a step."

    max_growth: float = 0.5
    """Tensors per step. A healthy run has 0, a kept loss at least 1."""
    max_copies: float = 0.34
    """Full copies of the weights per step. A script may keep its best weights, and start an average."""
    max_graphs: float = 0.75
    """Share of the earlier steps whose graphs are alive. Some add up the losses of a few steps."""

    def judge(self, trace: Trace) -> Finding:
        fewer = len(trace.records(evidence.Step)) < trace.run.training.max_steps
        ended_early = fewer and not trace.holds(Premise.STEPS_DECLARED)
        samples = (trace.main if ended_early else trace).all(evidence.LiveTensors)
        needed = required if ended_early else recorded
        needed(len(samples) >= 2, "fewer than two samples, because the run is too short")
        first, last = samples[0], samples[-1]
        steps = last.step - first.step
        detail = f"{first.tensors} tensors after step {first.step}, {last.tensors} after step {last.step}"
        kept = last.copies - first.copies
        grown = last.tensors - first.tensors
        # the best weights, or an average that begins late, are kept once; a copy in every other step is a leak
        if 0 < kept <= max(1, steps * self.max_copies):
            grown -= last.copied - first.copied
            detail += f", {last.copied - first.copied} of them in {kept} full copies of the weights"
        if last.graphs > first.graphs and last.graphs > (most := self.max_graphs) * last.step:
            detail = f"after step {last.step}, the graphs of {last.graphs} earlier steps are still alive"
            return self.at_most(last.graphs / last.step, most, detail, meant=LONG_GRAPH, causes=[LOSSES_ADDED])
        hooks = last.hooks - first.hooks
        # as a critic's: the variables of its loop are there from now on, a leaked model would bring all its weights
        required(hooks > 0 or not self.max_growth * steps < grown < last.learning - first.learning, LATE)
        growth = grown / steps if last.tensors > samples[-2].tensors else 0.0  # a leak rises to the end
        detail += f"; {hooks} more hooks on the model" if hooks > 0 else ""
        return self.at_most(growth, self.max_growth, detail, problems=range(max(0, hooks)))


FEWEST_SAMPLES = 8
"""With fewer, even samples that all rise could be chance: p is above 0.001."""


class MemoryFlat(Check):
    """The number of bytes in use is constant at the same point of each step after the warm-up.

    On a GPU the check reads the allocator after every step. On the CPU it counts the tensors that Python reaches after
    some steps. Both cover only this process, so other GPU processes do not matter.
    """

    needs = frozenset({"many_steps"})
    meaning = "Every step keeps something: losses with their graph, outputs, hooks, or a growing cache."
    remedy = "Detach and release what is kept. If live_tensors_flat fails too, the leak is in tensors."

    warm_up_steps: int = 20
    """Steps in which caches and the optimizer state may still grow."""
    max_slope_bytes: float = 64.0
    """Bytes per step. Allocators count in units of 512: a tensor kept every eighth step is found, no smaller leak."""
    max_rise_bytes: float = 65536.0
    """Bytes over the whole run. A healthy step ends with up to ten unread losses and norms (512 bytes each) and one
    window of tokens (24 bytes each). At 512 tokens this is under 40 KiB. Twenty healthy runs of a tiny model on the CPU
    ended within 29 KiB of their level. 30 steps at 4 KiB are 120 KiB."""
    max_p: float = 1e-3
    """Probability that a series without a trend looks like this one (Mann-Kendall)."""

    def judge(self, trace: Trace) -> Finding:
        known = [(s.step, s.allocated_bytes) for s in trace.steps if s.allocated_bytes is not None]
        source = "allocated" if known else "live tensors"
        known = known or [(s.step, s.bytes) for s in trace.all(evidence.LiveTensors)]
        steps = [float(step) for step, _ in known if step >= self.warm_up_steps]
        sizes = [float(size) for step, size in known if step >= self.warm_up_steps]
        if len(sizes) < FEWEST_SAMPLES:
            raise MissingEvidence(f"{len(sizes)} samples after {self.warm_up_steps} steps, {FEWEST_SAMPLES} are needed")
        found = trend(steps, sizes, confidence=0.95)
        rise = found.slope * (steps[-1] - steps[0])
        flat = found.slope <= self.max_slope_bytes or rise <= self.max_rise_bytes or found.p_rising >= self.max_p
        detail = f"{source}: {rise:+,.0f} bytes from step {steps[0]:.0f} to {steps[-1]:.0f}"
        detail += f", {found.slope:+,.0f} a step, p = {found.p_rising:.2g}"
        detail += f"; a leak is more than {self.max_slope_bytes:g} a step at p < {self.max_p:g}"
        return self.found(flat, detail, measured=rise, limit=self.max_rise_bytes)


class VramCeiling(Check):
    """Allocated GPU memory stays below the configured ceiling while the run trains."""

    needs = frozenset({"suite_rows", "named"})
    meaning = "Weights are not 4-bit. Logits or activations are in fp32. Gradient checkpointing is off. Memory leaks."
    remedy = "Fix quantization_as_configured and checkpointing_as_configured first. Shorten rows, or chunk the loss."

    ceiling_mib: int
    """Peak of the allocator in the first step and the steady phase, in MiB. The peak of loading is not judged."""

    def judge(self, trace: Trace) -> Finding:
        fell_back = any(attempt.start.device.startswith("cuda") for attempt in trace.attempts)
        (recorded if fell_back else required)(on_gpu(trace), "trained on the CPU: no GPU memory was used")
        phases = trace.all(evidence.Phase)
        training = [phase for phase in phases if phase.name in evidence.TRAINING_PHASES]
        peaks = [phase.peak_allocated_bytes for phase in training if phase.peak_allocated_bytes]
        recorded(peaks, "no training phase recorded its peak of allocated memory")
        peak_mib = max(peaks) / MIB
        if peak_mib <= self.ceiling_mib and trace.main.outcome == evidence.AttemptOutcome.OUT_OF_MEMORY:
            others = other_gpu_processes(trace)
            raise MissingEvidence(f"memory ran out at {peak_mib:,.0f} MiB" + (f" beside {others}" if others else ""))
        figures = {
            "loading took": [p.peak_allocated_bytes for p in phases if p.name == "load"],
            "requested": [p.peak_requested_bytes for p in training],
            "reserved": [p.peak_reserved_bytes for p in training],
        }
        known = {words: [value for value in values if value is not None] for words, values in figures.items()}
        told = [f"{words} {max(values) / MIB:,.0f} MiB" for words, values in known.items() if values]
        retries = sum(phase.allocation_retries or 0 for phase in training)
        told += [f"{retries} allocation retries" if retries else "", card_memory(trace, evidence.TRAINING_PHASES)]
        return self.at_most(peak_mib, self.ceiling_mib, ", ".join(filter(None, told)))


ORDER = (
    (evidence.MemoryVariant.CHECKPOINTING, evidence.MemoryVariant.NO_CHECKPOINTING),
    (evidence.MemoryVariant.AS_CONFIGURED, evidence.MemoryVariant.FOUR_ROWS),
    (evidence.MemoryVariant.AS_CONFIGURED, evidence.MemoryVariant.LORA),
    (evidence.MemoryVariant.LORA, evidence.MemoryVariant.FULL),
)
"""Pairs of variants: the first must take less memory."""


class MemoryOrder(Check):
    """Checkpointing, one row instead of 4, 4 bit instead of 16, and adapters instead of all weights save memory."""

    needs = frozenset({"memory_order"})
    meaning = "Weights were not quantised. Checkpointing does not reach the layers. Frozen weights get gradients."
    remedy = "Check the variant's quantization_as_configured, checkpointing_as_configured and trainable_set."

    max_ratio: float = 0.98
    """Peak of the smaller variant over that of the larger one. By arithmetic each difference exceeds the limit."""

    def judge(self, trace: Trace) -> Finding:
        required(on_gpu(trace), "trained on the CPU, which records no peak of allocated memory")
        peaks: dict[evidence.MemoryVariant, float] = {}
        for attempt in trace.made_for(evidence.AttemptPurpose.COMPARE):
            if (variant := attempt.start.variant) is None:
                continue
            found = [phase.peak_allocated_bytes or 0 for phase in attempt.all(evidence.Phase) if phase.name == "steady"]
            recorded(attempt.finished, f"the variant {variant.value!r} {attempt.ending}")
            peaks[variant] = recorded(sum(found[-1:]), f"the variant {variant.value!r} recorded no peak")
        if lacking := {name for pair in ORDER for name in pair} - peaks.keys():
            raise MissingEvidence(f"no attempt trained the variant {', '.join(sorted(lacking))}")
        pairs = [(less, more, peaks[less] / peaks[more]) for less, more in ORDER]
        wrong = [f"{less} does not take less than {more}" for less, more, ratio in pairs if not ratio <= self.max_ratio]
        sizes = ", ".join(f"{name} {peak / MIB:,.0f} MiB" for name, peak in peaks.items())
        detail, worst = f"{'; '.join(wrong)}: {sizes}" if wrong else sizes, max(ratio for _, _, ratio in pairs)
        return self.found(not wrong, detail, measured=worst, limit=self.max_ratio)


class MemoryReturned(Check):
    """After teardown, nearly all tensors of the session are released."""

    needs = frozenset({"suite_rows"})
    meaning = "A global list, a closure, a hook or a kept exception holds the model. The next run has less memory."
    remedy = "Drop references in finally. Never keep exceptions or outputs in module-level lists."

    max_share: float = 0.01
    """Share of the session's bytes; 1e-5 measured."""

    def judge(self, trace: Trace) -> Finding:
        seen = trace.one(evidence.Released)
        recorded(seen.session_bytes > 0, "the session held no memory that could be returned")
        alive = f"{seen.tensors} tensors, {max(0, seen.bytes):,} of {seen.session_bytes:,} bytes"
        return self.at_most(seen.bytes / seen.session_bytes, self.max_share, f"{alive} are alive after teardown")


class CardReturnsToBaseline(Check):
    """After each attempt, the GPU has as much free memory as before it, even if the attempt ran out of memory."""

    needs = frozenset({"fallback"})
    meaning = "A process of the attempt is still alive and holds GPU memory. The next attempt has less."
    remedy = "Find the process in nvidia-smi. End all that the training started, such as data workers and servers."

    max_growth_mib: float = 64
    """Growth of the memory that the driver reports for the whole GPU, without other processes. A CUDA context takes
    several times as much. Not measured on a GPU yet. Desktop windows take memory, too: only a leftover process
    fails."""

    def judge(self, trace: Trace) -> Finding:
        watched = [(attempt, seen) for attempt in trace.attempts if (seen := telemetry(attempt)) is not None]
        watched = required(watched, "no attempt was on a GPU")
        grown = [(_growth_bytes(attempt, seen) / MIB, attempt, seen) for attempt, seen in watched]
        worst, attempt, seen = worst_of(grown, key=lambda found: found[0])
        detail = f"an attempt leaves at most {worst:,.0f} MiB more in use"
        detail += f" ({attempt.start.purpose} {attempt.start.configuration})" if worst > 0 else ""
        if worst > self.max_growth_mib and seen.memory_source != "process":
            raise MissingEvidence(f"{detail}, and the driver does not list the owner, as in a container")
        if worst > self.max_growth_mib and not any(process.descendant for process in seen.processes_after):
            raise MissingEvidence(f"{detail}, and no process of the attempt is left on the GPU")
        return self.at_most(worst, self.max_growth_mib, detail)


def _growth_bytes(attempt: Attempt, seen: evidence.Telemetry) -> float:
    """Return how much more GPU memory is in use after the attempt than before, less what other processes took."""
    if seen.used_bytes_before is None or seen.used_bytes_after is None:
        raise MissingEvidence(f"the GPU's memory was not read before and after: {seen.problem or 'reason unknown'}")
    before = {process.pid: process.used_bytes for process in seen.processes_before}
    after = {process.pid: process.used_bytes for process in seen.processes_after if not process.descendant}
    alive = "the training process is still alive, as with --in-process: its memory is not released yet"
    recorded(seen.process_id not in after, alive)
    unnamed = "other processes started on the GPU meanwhile, and the driver does not report what they hold"
    recorded(all(after[pid] is not None for pid in after.keys() - before.keys()), unnamed)
    theirs = sum((after.get(pid) or 0) - (before.get(pid) or 0) for pid in before.keys() | after.keys())
    return seen.used_bytes_after - seen.used_bytes_before - theirs


class FallbackInOrder(Check):
    """Every fallback follows a recorded out-of-memory error and takes the next configured step.

    No out-of-memory error goes unrecorded.
    """

    needs = frozenset({"fallback"})
    meaning = """The training code caught an out-of-memory error and went on. A fallback hides another failure, or took
    a step that the run does not configure."""
    remedy = "Search for `except` around the training step. Read the reason of each attempt in the report."

    def judge(self, trace: Trace) -> Finding:
        tried = trace.trainings
        recorded(tried and tried[-1].finished, "the training did not finish, so the fallback chain did not end")
        problems, chain = [], trace.run.fallback
        taken = [attempt.start.fallback_step for attempt in tried]
        if taken != [step for step in ("", *chain) if step in taken]:
            steps = ", ".join(attempt.start.configuration for attempt in tried)
            problems.append(f"took {steps}; the fallback is configured as {', '.join(chain) or 'none'}")
        for before, after in pairwise(tried):
            if before.end is None or before.outcome != evidence.AttemptOutcome.OUT_OF_MEMORY:
                problems.append(f"started again on {after.start.device} after an attempt that {before.ending}")
            elif (after.start.reason, after.start.detail) != (evidence.AttemptReason.OUT_OF_MEMORY, before.end.detail):
                problems.append(f"the attempt on {after.start.device} does not record the error that caused it")
        for attempt in trace.attempts:
            # what torch counted in a finished attempt, less what was recorded for a probe
            left = sum(failure.error.startswith(ALLOCATOR_ERROR) for failure in attempt.all(evidence.ProbeFailed))
            for phase in attempt.all(evidence.Phase) if attempt.finished else ():
                count = phase.out_of_memory_count or 0
                explained = min(left, count)
                left -= explained
                if not count <= explained:
                    where = f"{count - explained} times in {phase.name!r}"
                    problems.append(f"the {attempt.start.purpose} attempt ran out of memory {where} and continued")
        tries = " -> ".join(f"{attempt.start.configuration} on {attempt.start.device}" for attempt in tried)
        fine = f"out of memory, then {tries}" if len(tried) > 1 else f"{tries}, memory never ran out"
        return self.unless(problems, fine)
