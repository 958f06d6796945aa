"""Sentences about a run and a session, for the view model of all reports."""

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from tunecheck.checks.telemetry import BUSY_SHARE_ON_CPU, BUSY_SHARE_ON_GPU, busy_words
from tunecheck.core.check import holding
from tunecheck.core.evidence import outcome_words
from tunecheck.core.finding import Finding, Status
from tunecheck.core.text import counted, human_bytes
from tunecheck.results import Report, RunReport


def headline(report: Report) -> str:
    """Return the verdict with its counts: "PASS — 21 checks passed, 0 failed, 2 unjudged; 1 run skipped"."""
    runs = report.runs
    checks = Counter(finding.status for run in runs for finding in run.findings)
    numbers = {
        "{} failed without a check": sum(run.outcome == "fail" and not run.failed for run in runs),
        "{} with an error": sum(run.outcome == "error" for run in runs),
        "{} skipped": sum(run.outcome == "skipped" for run in runs),
        "{} after a fallback": sum(bool(retries(run)) for run in runs),
    }
    judged = f"{counted(checks[Status.PASSED], 'check')} passed, {checks[Status.FAILED]} failed"
    parts = {
        f"{judged}, {checks[Status.UNJUDGED]} unjudged": True,
        counted(checks[Status.SUSPECTED], "suspicion"): checks[Status.SUSPECTED],
        f"{checks[Status.IGNORED]} ignored": checks[Status.IGNORED],
        **{words.format(counted(number, "run")): number for words, number in numbers.items()},
        f"{counted(len(report.regressions), 'figure')} worse than the baseline": report.regressions,
        "interrupted": report.interrupted,
    }
    return f"{report.verdict.upper()} — {'; '.join(holding(parts))}"


def domain_words(finding: Finding | RunReport) -> str:
    """Return the domain of a failed finding or an unfinished run, and its evidence: "environment: heat in 40 of 90"."""
    return ": ".join(filter(None, (finding.domain, finding.evidence)))


def loss_words(first: float | None, last: float | None) -> str:
    """Return a loss before and after training; empty unless both were measured."""
    if first is None or last is None:
        return ""
    # A diverged loss has too many digits for a column.
    return " → ".join(f"{value:.3f}" if abs(value) < 1000 else f"{value:.3g}" for value in (first, last))


def machine(environment: Mapping[str, Any]) -> str:
    """Return the machine in a line: GPUs, processor, memory, system, versions, commit. What is unknown is left out.

    tunecheck's own version is not among them: every report has that of the code that ran, wherever it is installed.
    """
    gpus = [f"{gpu.get('name')} {human_bytes(gpu.get('total_bytes'))}" for gpu in environment.get("gpus") or ()]
    cpu, git = environment.get("cpu") or {}, environment.get("git") or {}
    system = {"python": environment.get("python"), **(environment.get("versions") or {})}
    parts = [
        *gpus,
        cpu.get("model"),
        cpu.get("usable_cores") and counted(cpu["usable_cores"], "core"),
        human_bytes(environment.get("ram_total_bytes")),
        environment.get("platform"),
        *(f"{name} {version}" for name, version in system.items() if version and name != "tunecheck"),
        git.get("commit") and f"commit {git['commit'][:12]}{' with local changes' if git.get('dirty') else ''}",
    ]
    return ", ".join(part.strip() for part in parts if part)


def retries(run: RunReport) -> list[str]:
    """Return a sentence for each training attempt that was repeated: "ran out of memory on cuda:0, repeated on cpu"."""
    return [
        f"{outcome_words(first.outcome)} on {first.device}, repeated on {second.device}"
        for first, second in pairwise(run.trainings)
    ]


def cpu_contention_words(run: RunReport) -> list[str]:
    """Return how much CPU time other processes used while it trained, in a sentence; none where it was not measured."""
    if run.others_busy_share is None:
        return []
    return [busy_words(run.others_busy_share) + (", so its times mean nothing" if too_busy(run) else "")]


def too_busy(run: RunReport) -> bool:
    """Return whether other processes used so much CPU time that the run's times mean nothing."""
    limit = BUSY_SHARE_ON_CPU if run.device.startswith("cpu") else BUSY_SHARE_ON_GPU
    return run.others_busy_share is not None and run.others_busy_share > limit
