"""Out-of-memory fallback: only a recorded lack of memory causes one, and it starts from scratch."""

from collections.abc import Iterator
from itertools import pairwise

from tunecheck.checks.attempts import reference
from tunecheck.core.check import Check, recorded, some
from tunecheck.core.evidence import AttemptOutcome, AttemptReason, Phase, ProbeFailed, Step, TrainerState
from tunecheck.core.finding import Finding
from tunecheck.core.trace import Attempt, Trace

ALLOCATOR_ERROR = "OutOfMemoryError:"
"""How a probe's failure begins when torch's allocator raised it, the only kind of which torch keeps a count."""


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
            if before.end is None or before.outcome != AttemptOutcome.OUT_OF_MEMORY:
                problems.append(f"started again on {after.start.device} after an attempt that {before.ending}")
            elif (after.start.reason, after.start.detail) != (AttemptReason.OUT_OF_MEMORY, before.end.detail):
                problems.append(f"the attempt on {after.start.device} does not record the error that caused it")
        problems += _swallowed(trace)
        tries = " -> ".join(f"{attempt.start.configuration} on {attempt.start.device}" for attempt in tried)
        fine = f"out of memory, then {tries}" if len(tried) > 1 else f"{tries}, memory never ran out"
        return self.unless(problems, fine)


def _swallowed(trace: Trace) -> Iterator[str]:
    """Yield the out-of-memory errors that torch counted in a finished attempt, less those recorded for a probe."""
    for attempt in (attempt for attempt in trace.attempts if attempt.finished):
        of_probes = sum(failure.error.startswith(ALLOCATOR_ERROR) for failure in attempt.all(ProbeFailed))
        for phase in attempt.all(Phase):
            count = phase.out_of_memory_count or 0
            explained = min(of_probes, count)
            of_probes -= explained
            if not count <= explained:
                where = f"{count - explained} times in {phase.name!r}"
                yield f"the {attempt.start.purpose} attempt ran out of memory {where} and continued"


class FallbackStartsFresh(Check):
    """A fallback starts with the tensors and random state of a run that started on the CPU."""

    needs = frozenset({"reference"})
    meaning = """The fallback inherited state from the attempt that ran out of memory: half-trained weights, optimizer
    moments or an advanced random state."""
    remedy = "Load the model from its file in a fresh process. Do not move the old one with .to()."

    def judge(self, trace: Trace) -> Finding:
        wanted, begun = _beginning(reference(trace)), _beginning(trace.main)
        held, due = (seen.tensors | seen.settings for seen in (begun, wanted))
        problems = []
        if other := [name for name in held | due if held.get(name) != due.get(name)]:
            problems.append(f"{len(other)} differ from a run that starts on the CPU: {some(other)}")
        if kept := [name for name in begun.tensors if " of " in name]:
            problems.append(f"the optimizer held a state at the start: {some(kept)}")
        return self.unless(problems, f"{len(begun.tensors)} tensors and the random state are those of a fresh start")


def _beginning(attempt: Attempt) -> TrainerState:
    """Return all that an attempt starts from. Raises MissingEvidence where it was not recorded."""
    begun = [seen for seen in attempt.all(TrainerState) if seen.step == 0]
    return recorded(begun, f"the {attempt.start.purpose} attempt did not record its start")[0]


class FallbackEqualsReference(Check):
    """After a fallback to the CPU, every loss equals that of a run that started there, to the last bit."""

    needs = frozenset({"reference"})
    meaning = """The fallback inherited state from the GPU attempt: weights, optimizer state, the position in the data,
    or a setting meant for the GPU."""
    remedy = """Find the first step that differs. Step 0 points to the initial state, a later step to the optimizer or
    the data."""

    def judge(self, trace: Trace) -> Finding:
        wanted = {step.step: step.loss for step in reference(trace).all(Step)}
        got = {step.step: step.loss for step in trace.steps}
        # a NaN differs from everything, itself included
        different = [step for step in sorted(wanted | got) if got.get(step) != wanted.get(step)]
        detail = f"{len(got)} losses equal to the last bit"
        if different:
            first = different[0]
            detail = f"{len(different)} of {len(wanted)} losses differ, first step {first}: "
            detail += f"{got.get(first)!r} and {wanted.get(first)!r}"
        return self.at_most(len(different), 0, detail)
