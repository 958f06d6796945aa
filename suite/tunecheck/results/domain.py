"""Attribute a failure to workload, hardware or environment.

The order of the rules matters. A hardware fault explains everything, and no result counts beside it. Other GPU
processes, a busy CPU and throttling explain a slow run and never excuse a wrong loss; nor do they explain memory, which
is judged by the process's own allocator. What remains is attributed to the workload, if the machine was watched and a
fresh process agrees, where the run has one.
"""

import dataclasses
from collections.abc import Sequence

from tunecheck.checks import CHECKS, telemetry
from tunecheck.core.errors import MissingEvidence
from tunecheck.core.evidence import AttemptCause, AttemptOutcome, AttemptPurpose, Setup, Step
from tunecheck.core.finding import Domain, Finding, Status
from tunecheck.core.premises import Premise
from tunecheck.core.trace import Trace
from tunecheck.results.places import places_of

Attribution = tuple[Domain, str]


def attributed(trace: Trace, finding: Finding) -> Finding:
    """Return a failed finding with its domain and the evidence for it, a suspected one too with its code."""
    if finding.status is Status.SUSPECTED:
        return dataclasses.replace(finding, places=places_of(trace, finding.check))
    if finding.status is not Status.FAILED:
        return finding
    domain, evidence = domain_of(trace, finding)
    return dataclasses.replace(finding, domain=domain, evidence=evidence, places=places_of(trace, finding.check))


def domain_of(trace: Trace, finding: Finding) -> Attribution:
    """Return the domain of a failed finding, from the run's telemetry and its repeat."""
    speed = finding.check in CHECKS and CHECKS[finding.check].speed
    if faults := telemetry.hardware_faults(trace):
        return Domain.HARDWARE, "; ".join(faults)
    try:
        others = telemetry.other_gpu_processes(trace) if speed else ""
        others = f"other GPU processes: {others}" if others else ""
        if speed and (slowed := others or telemetry.busy_host(trace) or telemetry.throttled(trace)):
            return Domain.ENVIRONMENT, slowed
        return _by_repeat(trace, finding) or _by_watch(trace)
    except MissingEvidence as missing:
        return Domain.UNKNOWN, str(missing)


def machine_fault(trace: Trace, failed: Sequence[Finding]) -> Attribution | None:
    """Return the fault of the machine by which every one of these attributed findings failed; None for any other."""
    if failed and (faults := telemetry.hardware_faults(trace)):
        return Domain.HARDWARE, "; ".join(faults)
    if failed and all(finding.domain is Domain.ENVIRONMENT for finding in failed):
        return Domain.ENVIRONMENT, failed[0].evidence
    return None


def domain_of_end(trace: Trace) -> Attribution | None:
    """Return what kept the attempt that counts from finishing; None when it finished or was interrupted."""
    no_fault = (AttemptOutcome.FINISHED, AttemptOutcome.INTERRUPTED, AttemptOutcome.CUT_OFF)
    if not trace.trainings or (main := trace.main).outcome in no_fault:
        return None
    if faults := telemetry.hardware_faults(trace):
        return Domain.HARDWARE, "; ".join(faults)
    if main.outcome == AttemptOutcome.MISCONFIGURED:
        return Domain.WORKLOAD, "its configuration was refused"
    if main.outcome == AttemptOutcome.UNAVAILABLE:
        return Domain.ENVIRONMENT, "weights or data are missing on this machine"
    cause = main.end.cause if main.end is not None else None
    if cause == AttemptCause.GPU_MEMORY and (others := telemetry.other_gpu_processes(trace)):
        return Domain.ENVIRONMENT, f"other GPU processes: {others}"
    if cause in (AttemptCause.ERROR, AttemptCause.GPU_ERROR, AttemptCause.GPU_MEMORY):
        if signs := telemetry.unclear_signs(trace):
            return Domain.UNKNOWN, f"{'; '.join(signs)}: run again in a fresh process"
        if cause == AttemptCause.GPU_MEMORY and (why := telemetry.unwatched(main)):
            return Domain.UNKNOWN, f"whose memory it was is not known: {why}"
    return _BY_CAUSE.get(cause, (Domain.UNKNOWN, "what ended it was not seen"))


_BY_CAUSE: dict[AttemptCause | None, Attribution] = {
    AttemptCause.ERROR: (Domain.WORKLOAD, "the training code or a library raised an error"),
    AttemptCause.GPU_ERROR: (
        Domain.UNKNOWN,
        "a kernel of the program or the GPU can cause this error: run again in a fresh process",
    ),
    AttemptCause.NO_GPU: (Domain.ENVIRONMENT, "the driver lists a GPU that torch cannot use"),
    AttemptCause.GPU_MEMORY: (Domain.WORKLOAD, "no other process was seen on the GPU"),
    AttemptCause.KILLED: (Domain.ENVIRONMENT, "another process or the kernel killed the training"),
    AttemptCause.SIGNAL: (Domain.UNKNOWN, "a library, a driver or the memory can cause this signal: run again"),
    AttemptCause.EXIT: (Domain.UNKNOWN, "the process ended by itself without an error: look at its log"),
    AttemptCause.DEADLINE: (Domain.UNKNOWN, "it was stopped or hung: look at the stacks in its log"),
    AttemptCause.START: (Domain.ENVIRONMENT, "the system refused or ended the process that starts the training"),
    AttemptCause.LIBRARIES: (
        Domain.ENVIRONMENT,
        "an installed library, or the Python that runs it, is not as it must be",
    ),
    AttemptCause.DISK_FULL: (Domain.ENVIRONMENT, "no space is left on a disk of this machine"),
    AttemptCause.HOST_MEMORY: (Domain.ENVIRONMENT, "this machine's memory, or the process's limit of it, is used up"),
}
"""Where nothing that was watched explains the end."""


def _by_repeat(trace: Trace, finding: Finding) -> Attribution | None:
    """Attribute by a repeat in a fresh process; None without one that finished."""
    repeats = [one for one in trace.attempts if one.start.purpose == AttemptPurpose.REPEAT and one.finished]
    first = {step.step: step.loss for step in trace.records(Step)}
    pairs = [(first.get(step.step), step.loss) for repeat in repeats for step in repeat.all(Step)]
    if not pairs:
        return None
    if all(repr(before) == repr(after) for before, after in pairs):  # by their spelling, so that NaN equals NaN
        if finding.check == "repeat_equals":
            return Domain.UNKNOWN, "the losses agree, and yet the check failed"
        return Domain.WORKLOAD, f"a fresh process gave the same losses to the last bit in {len(pairs)} steps"
    if trace.one(Setup).numerics.get("deterministic"):
        return Domain.HARDWARE, "suspected: a fresh process gave other losses although the arithmetic is deterministic"
    return Domain.UNKNOWN, "a fresh process gave other losses, and the run does not set training.deterministic"


def _by_watch(trace: Trace) -> Attribution:
    """Attribute where nothing else was seen, by how completely the GPU was watched."""
    if not telemetry.on_gpu(trace):
        return Domain.WORKLOAD, "trained on the CPU: no GPU was involved"
    if not trace.holds(Premise.INTENT_DECLARED):
        return Domain.UNKNOWN, ""  # nobody watches the GPU of a script
    if why := telemetry.unwatched(trace.main):
        return Domain.UNKNOWN, f"the GPU was not watched to the end: {why}"
    if signs := telemetry.unclear_signs(trace):
        return Domain.UNKNOWN, f"{'; '.join(signs)}: run again in a fresh process"
    return Domain.WORKLOAD, "the GPU was watched to the end and reported no fault"
