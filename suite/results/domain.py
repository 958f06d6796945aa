"""Whose matter a failure is: the workload's, the hardware's, the environment's, or nobody can tell.

The order of the rules matters. A fault of the hardware explains everything, and no result counts beside it. Company on
the card and throttling explain a slow run and never excuse a wrong loss; nor do they explain memory, which is judged by
the process's own allocator. What is left is the workload's, if the machine was watched and a fresh process agrees,
where one was asked.
"""

from __future__ import annotations

import dataclasses
from enum import StrEnum

from suite.checks import CHECKS
from suite.checks.telemetry import busy_host, company, hardware_faults, on_gpu, telemetry, throttled, unclear_signs
from suite.core.errors import MissingEvidence
from suite.core.evidence import Setup, Step
from suite.core.finding import Finding, Status
from suite.core.trace import Trace


class Domain(StrEnum):
    """The four answers."""

    WORKLOAD = "workload"
    """Model, data, trainer or libraries."""
    HARDWARE = "hardware"
    ENVIRONMENT = "environment"
    """Others on the card, heat, power."""
    UNKNOWN = "unknown"


Attribution = tuple[Domain, str]
"""A domain and what speaks for it."""


def attributed(trace: Trace, finding: Finding) -> Finding:
    """The finding with its domain and the evidence for it; one that did not fail stays as it is."""
    if finding.status is not Status.FAILED:
        return finding
    domain, evidence = domain_of(trace, finding)
    return dataclasses.replace(finding, domain=domain.value, evidence=evidence)


def domain_of(trace: Trace, finding: Finding) -> Attribution:
    """The domain of a failed finding, from the run's telemetry and its repeat."""
    subject = CHECKS[finding.check].subject if finding.check in CHECKS else "result"
    if faults := hardware_faults(trace):
        return Domain.HARDWARE, "; ".join(faults)
    try:
        if subject == "speed" and (others := company(trace)):
            return Domain.ENVIRONMENT, f"on the card too: {others}"
        if subject == "speed" and (others := busy_host(trace)):
            return Domain.ENVIRONMENT, others
        if subject == "speed" and (reasons := throttled(trace)):
            return Domain.ENVIRONMENT, reasons
        return _by_repeat(trace, finding) or _by_watch(trace)
    except MissingEvidence as missing:
        return Domain.UNKNOWN, str(missing)


def _by_repeat(trace: Trace, finding: Finding) -> Attribution | None:
    """What a second fresh process says; None when none was asked, or it did not get to its end."""
    repeats = [attempt for attempt in trace.attempts if attempt.start.purpose == "repeat" and attempt.finished]
    first = {step.step: step.loss for step in trace.main.all(Step)}
    pairs = [(first.get(step.step), step.loss) for attempt in repeats for step in attempt.all(Step)]
    if not pairs:
        return None
    if all(repr(before) == repr(after) for before, after in pairs):  # by their spelling, so that NaN equals NaN
        if finding.check == "repeat_equals":
            return Domain.UNKNOWN, "the losses agree, and yet the check failed"
        return Domain.WORKLOAD, f"a fresh process gave the same losses to the last bit in {len(pairs)} steps"
    if trace.one(Setup).numerics.get("deterministic"):
        return Domain.HARDWARE, "a fresh process gave other losses although the arithmetic is deterministic: suspected"
    return Domain.UNKNOWN, "a fresh process gave other losses, and the arithmetic was not asked to be deterministic"


def _by_watch(trace: Trace) -> Attribution:
    """Without a sign of anything else: how far silence can be trusted."""
    if not on_gpu(trace):
        return Domain.WORKLOAD, "trained on the CPU: no card was involved"
    seen = telemetry(trace.main)
    if seen is None or not seen.complete:
        why = seen.problem if seen else "nobody metered it"
        return Domain.UNKNOWN, f"the card was not watched to the end: {why}"
    if signs := unclear_signs(trace):
        return Domain.UNKNOWN, f"{'; '.join(signs)}: run again in a fresh process"
    return Domain.WORKLOAD, "the card was watched to the end and reported nothing"
