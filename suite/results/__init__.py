"""What a session concluded: pure data from traces and findings, and the words for it that every output shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from suite import __version__
from suite.checks.telemetry import others_busy_share
from suite.core.errors import MissingEvidence
from suite.core.evidence import Evaluation, Phase, Step
from suite.core.finding import Finding, Status
from suite.core.trace import Attempt, Trace
from suite.results.domain import attributed
from suite.results.entry import Entry, entry_of
from suite.results.provenance import (
    asked_device,
    data_instead_of,
    data_words,
    device_words,
    precision_words,
    repairs,
    weights_words,
)
from suite.results.standing import Standing, worse

VERDICT_SCHEMA = 4
"""Raised when a reader of older verdicts would misread a newer one; 3 had no precision, 2 no standings either."""

EXIT_PASS = 0
"""Everything that was judged is good."""
EXIT_FAIL = 1
"""At least one run was judged bad, whatever else happened in the session."""
EXIT_INTERRUPTED = 2
"""Stopped by Ctrl-C or SIGTERM before anything was judged bad."""
EXIT_MISCONFIGURED = 4
"""A run's configuration asks for what weights and data rule out, and nothing was judged bad."""
EXIT_UNJUDGED = 6
"""Something could not be judged: a crash, a hang, missing weights, lost evidence, or nothing was run at all."""
EXIT_TOO_SMALL = 7
"""Nothing ran because this machine is too small for every run that was asked for."""

WARM_UP_STEPS = 2
"""The first steps pay for kernels, caches and the optimizer's state; they are left out of the throughput."""

CUT_OFF = "cut_off"
"""Outcome of an attempt whose end nobody was left to write."""

_OUTCOME_WORDS = {
    "finished": "finished",
    "out_of_memory": "ran out of memory",
    "failed": "failed",
    "crashed": "crashed",
    "hung": "hung",
    "interrupted": "was interrupted",
    "unavailable": "found no weights or data",
    "misconfigured": "was refused: its configuration is wrong",
    CUT_OFF: "was cut off with its session",
}

Outcome = Literal["pass", "fail", "inconclusive", "error", "skipped"]
"""pass and fail were judged, inconclusive lacks evidence, error did not train to its end, skipped never began."""
Verdict = Literal["pass", "fail", "inconclusive"]
"""What a whole session comes to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """One run as a row of the report."""

    run: str
    """The run's id: the file name of its configuration."""
    tier: str
    model: str
    outcome: Outcome
    reason: str = ""
    """Why it was skipped, could not be judged, or did not train to its end; empty where the findings say it all."""
    device: str = ""
    """Where the attempt that counts ran: "cpu", "cuda:0 NVIDIA H200" or, with --vram-cap, "cuda:0 NVIDIA H200
    (capped at 8.0 GiB)", the rung of its ladder in brackets too; empty when nothing ran."""
    precision: str = ""
    """Arithmetic of the forward pass: fp32, bf16 or fp16; empty when nothing ran."""
    attempts: tuple[dict[str, Any], ...] = ()
    """Every child process: purpose, device, outcome, reason (why it was made) and seconds (None when cut off)."""
    weights: str = ""
    """Source, identifier@revision, the start of the file's SHA-256, pretrained or random."""
    data: str = ""
    """Source, identifier@revision, the start of the two splits' SHA-256, rows for training and held out."""
    repairs: tuple[str, ...] = ()
    """When and why damaged weights or rows were fetched again."""
    data_instead_of: str = ""
    """The hub's rows that were asked for and its answer, where others were trained; else empty."""
    fingerprint: str = ""
    findings: tuple[Finding, ...] = ()
    losses: tuple[float, ...] = ()
    """The training loss of every optimizer step."""
    probe_loss_start: float | None = None
    """The first evaluation of the fixed probe batch."""
    probe_loss_end: float | None = None
    """The last one; None when there was only one."""
    peak_bytes: int | None = None
    peak_kind: str = ""
    """allocator (torch's own peak on the GPU) or resident (the whole process); empty when nothing was measured."""
    tokens_per_second: float | None = None
    """Median over the steps after the warm-up; None when there were too few."""
    others_busy_share: float | None = None
    """Share of the machine's processor time that other processes took while it trained; None where nobody looked."""
    seconds: float = 0.0
    entry: Entry | None = None
    """Its row in a comparison; None for a run by itself."""
    trace_file: str = ""
    """Name of the trace in the session's folder; empty when there is none."""

    @property
    def name(self) -> str:
        """Tier and id: what tells this run from all others of a session."""
        return f"{self.tier}/{self.run}"

    @property
    def misconfigured(self) -> bool:
        """Whether it did not train because its configuration is wrong."""
        trained = [attempt["outcome"] for attempt in self.attempts if attempt["purpose"] == "train"]
        return trained[-1:] == ["misconfigured"]

    @property
    def passed(self) -> list[Finding]:
        """The checks that were judged good."""
        return [finding for finding in self.findings if finding.status is Status.PASSED]

    @property
    def failed(self) -> list[Finding]:
        """The checks that were judged bad."""
        return [finding for finding in self.findings if finding.status is Status.FAILED]

    @property
    def unjudged(self) -> list[Finding]:
        """The checks without an answer, those that were expected to answer first."""
        findings = [finding for finding in self.findings if finding.status is Status.UNJUDGED]
        return sorted(findings, key=lambda finding: finding.expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole session."""

    schema: int = VERDICT_SCHEMA
    tunecheck_version: str = __version__
    started_at: str
    """UTC, ISO 8601."""
    seconds: float
    verdict: Verdict
    environment: dict[str, Any] = field(default_factory=dict)
    """Hardware, versions and the project's git commit, as in the header of the traces."""
    command: str = ""
    """What was typed."""
    interrupted: bool = False
    runs: tuple[RunReport, ...] = ()
    standings: tuple[Standing, ...] = ()
    """The runs' figures against the nights before."""
    history_notes: tuple[str, ...] = ()
    """What kept figures from being compared or remembered, a sentence each."""

    @property
    def regressions(self) -> list[Standing]:
        """The figures that are worse than usual: a warning, unless --fail-on-regression made the verdict of it."""
        return worse(self.standings)


def summarize(trace: Trace, findings: Sequence[Finding], *, trace_file: str, seconds: float) -> RunReport:
    """The row for a run that was tried, with the outcome that its findings and its last training attempt amount to.

    Failed findings are attributed to a domain.
    """
    findings = [attributed(trace, finding) for finding in findings]
    main = _main(trace)
    records = main.records if main else ()
    outcome, reason = _outcome(main, findings)
    steps = [record for record in records if isinstance(record, Step)]
    peak_bytes, peak_kind = _peak([record for record in records if isinstance(record, Phase)])
    probes = [record.loss for record in records if isinstance(record, Evaluation) and record.split == "probe"]
    return RunReport(
        run=trace.run["id"],
        tier=trace.run["tier"],
        model=trace.run["model"]["name"],
        outcome=outcome,
        reason=reason,
        device=device_words(main),
        precision=precision_words(main),
        attempts=tuple(_attempt(attempt) for attempt in trace.attempts),
        weights=weights_words(main),
        data=data_words(main),
        data_instead_of=data_instead_of(main),
        repairs=repairs(main),
        fingerprint=trace.header.fingerprint,
        findings=tuple(findings),
        losses=tuple(step.loss for step in steps),
        probe_loss_start=probes[0] if probes else None,
        probe_loss_end=probes[-1] if len(probes) > 1 else None,
        peak_bytes=peak_bytes,
        peak_kind=peak_kind,
        tokens_per_second=_tokens_per_second(steps),
        others_busy_share=others_busy_share(trace) if main else None,
        seconds=seconds,
        entry=entry_of(trace, main),
        trace_file=trace_file,
    )


def skipped(run_id: str, tier: str, model: str, reason: str) -> RunReport:
    """The row for a run that this machine is too small for; the reason is a sentence that says what is missing."""
    return RunReport(run=run_id, tier=tier, model=model, outcome="skipped", reason=reason)


def errored(
    run_id: str, tier: str, model: str, reason: str, *, seconds: float = 0.0, trace_file: str = ""
) -> RunReport:
    """The row for a run that left no trace to judge: a bad configuration, say, or an unwritable folder."""
    return RunReport(
        run=run_id, tier=tier, model=model, outcome="error", reason=reason, seconds=seconds, trace_file=trace_file
    )


def verdict_of(runs: Sequence[RunReport], interrupted: bool) -> Verdict:
    """One bad run makes it fail; it passes only when at least one run passed and none was left without an answer."""
    outcomes = {run.outcome for run in runs}
    if "fail" in outcomes:
        return "fail"
    if interrupted or "pass" not in outcomes or not outcomes <= {"pass", "skipped"}:
        return "inconclusive"
    return "pass"


def exit_code(report: Report) -> int:
    """The exit status of a session: one of the EXIT_ constants."""
    if report.verdict == "pass":
        return EXIT_PASS
    if report.verdict == "fail":
        return EXIT_FAIL
    if report.interrupted:
        return EXIT_INTERRUPTED
    if any(run.misconfigured for run in report.runs):
        return EXIT_MISCONFIGURED
    if report.runs and all(run.outcome == "skipped" for run in report.runs):
        return EXIT_TOO_SMALL
    return EXIT_UNJUDGED


def outcome_words(outcome: str) -> str:
    """An attempt's outcome as the predicate of a sentence: "ran out of memory"."""
    return _OUTCOME_WORDS.get(outcome, outcome)


def _main(trace: Trace) -> Attempt | None:
    try:
        return trace.main
    except MissingEvidence:
        return None


def _outcome(main: Attempt | None, findings: Sequence[Finding]) -> tuple[Outcome, str]:
    stopped = _why_unfinished(main)
    if any(finding.status is Status.FAILED for finding in findings):
        return "fail", stopped
    if stopped:
        return "error", stopped
    open_checks = [f.check for f in findings if f.status is Status.UNJUDGED and not f.expected]
    if open_checks:
        return "inconclusive", f"checks without the evidence they need: {', '.join(open_checks)}"
    if not any(finding.status is Status.PASSED for finding in findings):
        return "inconclusive", "not one check was judged"
    return "pass", ""


def _why_unfinished(main: Attempt | None) -> str:
    """Empty when the training attempt that counts did all it was asked to do."""
    if main is None:
        return "no training attempt was made"
    if main.finished:
        return ""
    words = f"the training {outcome_words(main.end.outcome if main.end else CUT_OFF)}"
    return f"{words}: {main.end.detail}" if main.end and main.end.detail else words


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "purpose": attempt.start.purpose,
        "device": asked_device(attempt),
        "outcome": attempt.end.outcome if attempt.end else CUT_OFF,
        "reason": attempt.start.reason,
        "seconds": attempt.end.seconds if attempt.end else None,
    }


def _peak(phases: list[Phase]) -> tuple[int | None, str]:
    if allocated := [phase.peak_allocated_bytes for phase in phases if phase.peak_allocated_bytes is not None]:
        return max(allocated), "allocator"
    if resident := [phase.process_bytes for phase in phases if phase.process_bytes is not None]:
        return max(resident), "resident"
    return None, ""


def _tokens_per_second(steps: list[Step]) -> float | None:
    rates = [step.tokens / step.seconds for step in steps[WARM_UP_STEPS:] if step.seconds > 0]
    return median(rates) if rates and all(map(math.isfinite, rates)) else None
