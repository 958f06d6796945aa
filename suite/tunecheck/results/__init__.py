"""The results of a session: pure data from traces and findings, shared by every output."""

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import field, replace
from datetime import UTC, datetime
from enum import IntEnum
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Literal

from tunecheck import __version__
from tunecheck.checks import SUBJECTS
from tunecheck.checks.telemetry import BUSY_SHARE_ON_CPU, BUSY_SHARE_ON_GPU, busy_words, others_busy_share
from tunecheck.checks.utilization import timed, tokens_per_second
from tunecheck.core import evidence
from tunecheck.core.check import holding
from tunecheck.core.finding import Domain, Finding, Status
from tunecheck.core.frozen import Frozen
from tunecheck.core.premises import Premise
from tunecheck.core.snapshot import RunSnapshot
from tunecheck.core.text import counted
from tunecheck.core.trace import Attempt, Trace
from tunecheck.results.baseline import FigureComparison
from tunecheck.results.causes import explained, plausible
from tunecheck.results.domain import attributed, domain_of_end, machine_fault

if TYPE_CHECKING:
    from tunecheck.config.schema import Run

VERDICT_SCHEMA = 6
"""The only schema that is read. Raised when a reader of older verdicts would misread a newer one."""


class Exit(IntEnum):
    """Exit statuses of a session, and of every command."""

    PASS = 0
    FAIL = 1
    """At least one run failed, whatever else happened in the session."""
    INTERRUPTED = 2
    """Stopped by Ctrl-C or SIGTERM before any run failed."""
    MISCONFIGURED = 4
    """A run's configuration does not fit its weights or data, and no run failed; or a wrong command line."""
    UNJUDGED = 6
    """Something could not be judged: a crash, a hang, missing weights, lost evidence, or nothing was run at all."""
    TOO_SMALL = 7
    """Nothing ran because this machine is too small for every selected run."""


Outcome = Literal["pass", "fail", "inconclusive", "error", "skipped"]
"""pass and fail were judged, inconclusive lacks evidence, error did not train to its end, skipped never began."""
Verdict = Literal["pass", "fail", "inconclusive"]


class Tried(Frozen):
    """One child process of a run."""

    purpose: str
    device: str
    outcome: str
    reason: str
    seconds: float | None


class Entry(Frozen):
    """What a comparison shows of one run beside its own row; None where the run did not come so far."""

    comparison: str
    """Tier and file."""
    name: str
    """The run's name in that file; in a benchmark its trainer."""
    turn: int = 0
    """Turn of a benchmark, from 1; 0 in a comparison of runs."""
    trained_parameters: int | None = None
    total_parameters: int | None = None
    """The adapters' included."""
    heldout_loss_start: float | None = None
    heldout_loss_end: float | None = None
    training_seconds: float | None = None
    """The optimizer steps' own time, evaluations and probes left out."""
    rows_per_second: float | None = None
    """Median over the steps after the warm-up."""
    pretrained: bool = False


class RunReport(Frozen):
    """One run as a row of the report."""

    run: str
    tier: str
    model: str = ""
    outcome: Outcome
    reason: str = ""
    """Why it was skipped, could not be judged, or did not train to its end; empty where the findings say it all."""
    domain: Domain | Literal[""] = ""
    """What kept it from being trained to its end, see suite/tunecheck/results/domain.py; empty where nothing did."""
    evidence: str = ""
    device: str = ""
    """Where the attempt that counts ran: "cpu", "cuda:0 NVIDIA H200" or, with --vram-cap, "cuda:0 NVIDIA H200
    (capped at 8.0 GiB)", its fallback step in brackets too; empty when nothing ran."""
    precision: str = ""
    """Arithmetic of the forward pass: fp32, bf16 or fp16; empty when nothing ran."""
    attempts: tuple[Tried, ...] = ()
    weights: str = ""
    """Source, identifier@revision, the start of the file's SHA-256, pretrained or random."""
    data: str = ""
    """Source, identifier@revision, the start of the two splits' SHA-256, rows for training and held out."""
    repairs: tuple[str, ...] = ()
    data_instead_of: str = ""
    """The hub's rows that were requested and its answer, where others were used; else empty."""
    fingerprint: str = ""
    findings: tuple[Finding, ...] = ()
    course: tuple[str, ...] = ()
    """Reasons of unjudged checks that only the course of a watched training gave."""
    needless: tuple[str, ...] = ()
    """Checks that the user ignores, and that found nothing."""
    losses: tuple[float, ...] = ()
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
    """Share of the machine's processor time that other processes used while it trained; None if unknown."""
    seconds: float = 0.0
    entry: Entry | None = None
    trace_file: str = ""
    """Name of the trace in the session's folder; empty when there is none."""

    @property
    def name(self) -> str:
        return f"{self.tier}/{self.run}"

    @property
    def misconfigured(self) -> bool:
        return [tried.outcome for tried in self.trainings[-1:]] == [evidence.AttemptOutcome.MISCONFIGURED]

    @property
    def trainings(self) -> list[Tried]:
        return [tried for tried in self.attempts if tried.purpose == evidence.AttemptPurpose.TRAIN]

    @property
    def retries(self) -> list[str]:
        """A sentence for each training attempt that was repeated: "ran out of memory on cuda:0, repeated on cpu"."""
        pairs = pairwise(self.trainings)
        return [f"{evidence.outcome_words(a.outcome)} on {a.device}, repeated on {b.device}" for a, b in pairs]

    @property
    def too_busy(self) -> bool:
        """Whether other processes used so much CPU time that the run's times mean nothing."""
        limit = BUSY_SHARE_ON_CPU if self.device.startswith("cpu") else BUSY_SHARE_ON_GPU
        return self.others_busy_share is not None and self.others_busy_share > limit

    @property
    def cpu_contention(self) -> str:
        """How much CPU time other processes used while it trained, in a sentence; empty where it was not measured."""
        if self.others_busy_share is None:
            return ""
        return busy_words(self.others_busy_share) + (", so its times mean nothing" if self.too_busy else "")

    @property
    def interrupted(self) -> bool:
        """Whether its last attempt was interrupted, or cut off with its session."""
        cut_short = (evidence.AttemptOutcome.INTERRUPTED, evidence.AttemptOutcome.CUT_OFF)
        return any(tried.outcome in cut_short for tried in self.attempts[-1:])

    @property
    def passed(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.status is Status.PASSED]

    @property
    def failed(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.status is Status.FAILED]

    @property
    def suspected(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.status is Status.SUSPECTED]

    @property
    def ignored(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.status is Status.IGNORED]

    @property
    def unjudged(self) -> list[Finding]:
        """The unjudged checks, those that should have been judged first."""
        findings = [finding for finding in self.findings if finding.status is Status.UNJUDGED]
        return sorted(findings, key=lambda finding: finding.expected)


class Report(Frozen):
    """A whole session."""

    schema: int = VERDICT_SCHEMA
    tunecheck_version: str = __version__
    started_at: str
    seconds: float
    verdict: Verdict
    environment: evidence.Environment = field(default_factory=dict)
    command: str = ""
    interrupted: bool = False
    runs: tuple[RunReport, ...] = ()
    figure_comparisons: tuple[FigureComparison, ...] = ()
    problems: str = ""
    """What the watched processes trained unheard: "training not judged: 28 steps of AdamW (train.py:31)"."""
    history_notes: tuple[str, ...] = ()
    """Why figures were not compared or not stored, a sentence each."""

    @property
    def headline(self) -> str:
        """The verdict with its counts: "PASS — 21 checks passed, 0 failed, 2 unjudged; 1 run skipped"."""
        checks = Counter(finding.status for run in self.runs for finding in run.findings)
        numbers = {
            "{} failed without a check": sum(run.outcome == "fail" and not run.failed for run in self.runs),
            "{} with an error": sum(run.outcome == "error" for run in self.runs),
            "{} skipped": sum(run.outcome == "skipped" for run in self.runs),
            "{} after a fallback": sum(bool(run.retries) for run in self.runs),
        }
        judged = f"{counted(checks[Status.PASSED], 'check')} passed, {checks[Status.FAILED]} failed"
        few = "only " * (self.verdict == "pass" and bool(self.blank) and checks.total() < 2 * checks[Status.UNJUDGED])
        parts = {
            f"{few}{judged}, {checks[Status.UNJUDGED]} unjudged": True,
            f"nothing judged about {', '.join(self.blank)}": self.blank,
            counted(checks[Status.SUSPECTED], "suspicion"): checks[Status.SUSPECTED],
            f"{checks[Status.IGNORED]} ignored": checks[Status.IGNORED],
            **{words.format(counted(number, "run")): number for words, number in numbers.items()},
            f"{counted(len(self.regressions), 'figure')} worse than the baseline": self.regressions,
            self.problems: self.problems,
            "interrupted": self.interrupted,
        }
        return f"{self.verdict.upper()} — {'; '.join(holding(parts))}"

    @property
    def blank(self) -> list[str]:
        """The subjects of which no check was judged in any watched training; none where nothing at all was."""
        found = [finding for run in self.runs if run.tier == "watch" for finding in run.findings]
        judged = {SUBJECTS.get(finding.check) for finding in found if finding.status is not Status.UNJUDGED}
        asked = {finding.check for finding in found if judged}
        return [*dict.fromkeys(about for check, about in SUBJECTS.items() if check in asked and about not in judged)]

    @property
    def regressions(self) -> list[FigureComparison]:
        return [comparison for comparison in self.figure_comparisons if comparison.status == "worse"]


def summarize(trace: Trace, findings: Sequence[Finding], *, trace_file: str, seconds: float) -> RunReport:
    """Return the row of a run that was tried, its answers applied to the findings and its failures attributed."""
    broken = {finding.check for finding in findings if finding.status in (Status.FAILED, Status.SUSPECTED)}
    ask = not (trace.run.strict or trace.holds(Premise.INTENT_DECLARED))
    findings = explained([answered(finding, trace.run) for finding in findings], ask=ask)
    findings = [attributed(trace, plausible(finding, findings, trace)) for finding in findings]
    attribution = domain_of_end(trace)
    run, main = trace.run, trace.main if trace.trainings else None
    outcome, reason = _outcome(main, findings)
    if outcome == "pass" and (lacking := without_core(trace, findings)):
        outcome, reason = "inconclusive", lacking
    unjudged = {finding.detail for finding in findings if finding.status is Status.UNJUDGED}
    opened = dict.fromkeys(why for seen in trace.records(evidence.PremisesOpen) for why in seen.reasons.values())
    if blamed := machine_fault(trace, failed := [finding for finding in findings if finding.status is Status.FAILED]):
        outcome, attribution = "error", blamed
        reason = reason or f"{', '.join(finding.check for finding in failed)} failed by a fault of the machine"
    setup = next(reversed(trace.records(evidence.Setup)), None)
    weights = next(reversed(trace.records(evidence.Weights)), None)
    data = next(reversed(trace.records(evidence.Dataset)), None)
    steps = trace.records(evidence.Step)
    rate = tokens_per_second(steps)
    peak_bytes, peak_kind = peak_of(trace.records(evidence.Phase))
    probes = [evaluation.loss for evaluation in trace.records(evidence.Evaluation) if evaluation.split == "probe"]
    return RunReport(
        run=run.id,
        tier=run.tier,
        model=run.model,
        outcome=outcome,
        reason=reason,
        domain=attribution[0] if attribution else "",
        evidence=attribution[1] if attribution else "",
        device=_device(main, setup) if main else "",
        precision=setup.precision if setup else "",
        attempts=tuple(
            Tried(
                purpose=attempt.start.purpose,
                device=_device(attempt, None),
                outcome=attempt.outcome,
                reason=attempt.start.explanation,
                seconds=attempt.end.seconds if attempt.end else None,
            )
            for attempt in trace.attempts
        ),
        weights=_weights(weights) if weights else "",
        data=data_words(data) if data else "",
        data_instead_of=data.instead_of if data else "",
        repairs=tuple(repair for found in (weights, data) if found for repair in found.repairs),
        fingerprint=trace.header.fingerprint,
        findings=tuple(findings),
        course=tuple(why for why in opened if why in unjudged),
        needless=tuple(check for check in trace.run.ignore if check not in broken),
        losses=tuple(step.loss for step in steps),
        probe_loss_start=probes[0] if probes else None,
        probe_loss_end=probes[-1] if len(probes) > 1 else None,
        peak_bytes=peak_bytes,
        peak_kind=peak_kind,
        tokens_per_second=rate if rate is not None and math.isfinite(rate) else None,
        others_busy_share=others_busy_share(trace) if main else None,
        seconds=seconds,
        entry=entry_of(trace),
        trace_file=trace_file,
    )


def answered(finding: Finding, run: RunSnapshot) -> Finding:
    """Return the finding as the user's answers for this run have it: ignored where it is meant, failed where strict."""
    if finding.status not in (Status.FAILED, Status.SUSPECTED):
        return finding
    if reason := run.ignore.get(finding.check):
        return replace(finding, status=Status.IGNORED, meant=reason)
    return replace(finding, status=Status.FAILED) if run.strict else finding


def waiting(run: "Run | RunSnapshot") -> Entry | None:
    """Return the entry of a run that did not begin; None for a run by itself."""
    return Entry(comparison=run.comparison, name=run.entry, turn=run.turn) if run.comparison else None


def entry_of(trace: Trace) -> Entry | None:
    """Return the entry of the attempt that counts; None for a run by itself."""
    if (entry := waiting(run := trace.run)) is None:
        return None
    censuses, steps = trace.records(evidence.Census), trace.records(evidence.Step)
    heldout = [evaluation.loss for evaluation in trace.records(evidence.Evaluation) if evaluation.split == "heldout"]
    rates = [run.rows_per_step / step.seconds for step in timed(steps)]
    return replace(
        entry,
        trained_parameters=censuses[-1].trainable_parameters if censuses else None,
        total_parameters=censuses[-1].total_parameters if censuses else None,
        heldout_loss_start=heldout[0] if heldout else None,
        heldout_loss_end=heldout[-1] if len(heldout) > 1 else None,
        training_seconds=sum(step.seconds for step in steps) if steps else None,
        rows_per_second=median(rates) if rates else None,
        pretrained=any(weights.pretrained for weights in trace.records(evidence.Weights)),
    )


def reporting(command: str) -> Callable[..., Report]:
    """Return what makes the report of a session that begins now: of its rows, `interrupted` and further fields."""
    started, clock = datetime.now(UTC), time.monotonic()
    return lambda rows, *, interrupted, **more: Report(
        started_at=started.isoformat(timespec="seconds"),
        seconds=time.monotonic() - clock,
        verdict=verdict_of(rows, interrupted),
        command=command,
        interrupted=interrupted,
        runs=tuple(rows),
        **more,
    )


def verdict_of(runs: Sequence[RunReport], interrupted: bool) -> Verdict:
    return verdict_by(status_of({run.outcome for run in runs}, interrupted=interrupted))


def exit_code(report: Report) -> int:
    """Return the exit status of a session: that of its verdict, which may be stricter than its runs."""
    wrong = any(run.misconfigured for run in report.runs)
    status = status_of({run.outcome for run in report.runs}, interrupted=report.interrupted, misconfigured=wrong)
    return {"pass": Exit.PASS, "fail": Exit.FAIL, "inconclusive": status or Exit.UNJUDGED}[report.verdict]


def status_of(outcomes: Collection[str], *, interrupted: bool, misconfigured: bool = False) -> Exit:
    """Return the exit status of these outcomes: any failure fails all, a pass has one passed and none unjudged."""
    precedence = {
        Exit.FAIL: "fail" in outcomes,
        Exit.INTERRUPTED: interrupted,
        Exit.MISCONFIGURED: misconfigured,
        Exit.TOO_SMALL: set(outcomes) == {"skipped"},
        Exit.PASS: "pass" in outcomes and set(outcomes) <= {"pass", "skipped"},
    }
    return next((status for status, holds in precedence.items() if holds), Exit.UNJUDGED)


def verdict_by(status: int) -> Verdict:
    return "pass" if status == Exit.PASS else "fail" if status == Exit.FAIL else "inconclusive"


def _outcome(main: Attempt | None, findings: Sequence[Finding]) -> tuple[Outcome, str]:
    stopped = "no training attempt was made" if main is None else "" if main.finished else f"the training {main.ending}"
    if any(finding.status is Status.FAILED for finding in findings):
        return "fail", stopped
    if stopped:
        return "error", stopped
    if open_checks := [f.check for f in findings if f.status is Status.UNJUDGED and not f.expected]:
        return "inconclusive", f"checks without the evidence they need: {', '.join(open_checks)}"
    if not any(finding.status is Status.PASSED for finding in findings):
        return "inconclusive", "not one check was judged"
    return "pass", ""


CORE = ("what learns", "rows", "gradients", "optimizer")
"""Subjects that a pass of a training of the user's own rests on, each by one judged check at least."""


def core_of(trace: Trace) -> tuple[str, ...]:
    """Return the subjects that a pass of this training rests on; none for the suite's own, whose checks all count."""
    if trace.run.tier != "watch":
        return ()
    # an objective of the loop's own leaves labels unknown
    return (*CORE, "loss") if trace.holds(Premise.CAUSAL_LM) and trace.holds(Premise.LABELS_KNOWN) else CORE


def without_core(trace: Trace, findings: Sequence[Finding]) -> str:
    """Return which subject of a watched training's core no check could judge, and why; "" where each has one."""
    lacking = []
    for subject in core_of(trace):
        asked = [finding for finding in findings if SUBJECTS.get(finding.check) == subject]
        if all(finding.status is Status.UNJUDGED for finding in asked):
            why = Counter(finding.detail for finding in asked).most_common(1)
            lacking.append(f"nothing about {subject} could be judged: {why[0][0] if why else 'no check applies'}")
    if core_of(trace) and (reason := trace.why({Premise.GRADIENT_DUE})):
        lacking.append(f"nothing about learning could be judged: {reason}; watch more steps with --steps")
    return "; ".join(lacking)


def peak_of(phases: Sequence[evidence.Phase]) -> tuple[int | None, str]:
    """Return the largest memory of these phases and what counted it: allocator, resident, or empty for nothing."""
    if allocated := [phase.peak_allocated_bytes for phase in phases if phase.peak_allocated_bytes is not None]:
        return max(allocated), "allocator"
    if resident := [phase.process_bytes for phase in phases if phase.process_bytes is not None]:
        return max(resident), "resident"
    return None, ""


def _weights(weights: evidence.Weights) -> str:
    parts = (weights.source, _pinned(weights), weights.sha256[:12], "pretrained" if weights.pretrained else "random")
    # Random weights name themselves twice: their source is "random" too.
    return " ".join(part for part in dict.fromkeys(parts) if part)


def data_words(data: evidence.Dataset) -> str:
    return f"{data.source} {_pinned(data)} {data.sha256[:12]} {data.rows} + {data.heldout_rows} rows"


def _pinned(found: evidence.Weights | evidence.Dataset) -> str:
    return f"{found.identifier}@{found.revision}" if found.revision else found.identifier


def _device(attempt: Attempt, setup: evidence.Setup | None) -> str:
    """Return the device that an attempt used, a GPU by name, else the one that it was given; with its fallback step.

    A cap is named, so that no result of a large GPU under --vram-cap reads as that of a small one.
    """
    device, cap_bytes, step = attempt.start.device, attempt.start.vram_cap_bytes, attempt.start.fallback_step
    if setup is not None:
        # The CPU's model name is long and stands in the environment; a GPU's is what a reader of the row looks for.
        device = "cpu" if setup.device == "cpu" else f"{setup.device} {setup.device_name}".strip()
        cap_bytes = setup.vram_cap_bytes
    device += f" ({step})" if step not in ("", "cpu") else ""  # which the device says
    return device if cap_bytes is None else f"{device} (capped at {cap_bytes / 2**30:.1f} GiB)"
