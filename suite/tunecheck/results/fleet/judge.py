"""Judge a fleet: each place by its own session, then by what the others of its kind did."""

import dataclasses
import re
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from tunecheck.core.check import grouped
from tunecheck.core.finding import Domain, Finding, Status
from tunecheck.core.text import human_seconds
from tunecheck.results import Exit, status_of, verdict_by
from tunecheck.results.fleet import NODE_NAME, OVERDUE, Answer, FleetReport, Heard, NodeOutcome, NodeRow, RunAnswer
from tunecheck.results.fleet.kinds import SPEED, agreements, members, outliers, slow, words

FEWEST_FOR_A_MAJORITY = 3
NO_GPU = "no GPU works"

_BY_STATUS: dict[int | None, NodeOutcome] = {Exit.PASS: "pass", Exit.FAIL: "fail", Exit.TOO_SMALL: "skipped"}
_ORDER: tuple[NodeOutcome, ...] = ("fail", "error", "no answer", "inconclusive", "pass", "skipped")


def judge_fleet(heard: Collection[Heard], *, interrupted: bool = False, **about: Any) -> FleetReport:
    """Return the report on these places; `about` are further fields, from the beginning to the command."""
    # an answer speaks for no other node than the one asked
    given = [dataclasses.replace(one.answer, node=one.place.node) for one in heard if one.answer]
    findings, remarks = _by_kind(given)
    for place, remark in [*_odd_stacks(given), *((one.place.name, one.clock) for one in heard if one.clock)]:
        remarks[place].append(remark)
    causes = _Causes(given)
    judged = {answer.place: _row(answer, findings[answer.place], remarks[answer.place], causes) for answer in given}
    rows = [_with_engine(judged.get(one.place.name), one) for one in heard]
    rows.sort(key=lambda row: (not row.odd, _ORDER.index(row.outcome), natural(row.place)))
    notes = []  # what the headline does not say of places
    if out := [row.place for row in rows if row.outcome == "skipped" and row.status is None]:
        notes.append(f"not asked, because already out of service: {', '.join(out)}")
    if unsafe := sorted({row.node for row in rows if row.drain and not NODE_NAME.fullmatch(row.node)}):
        named = ", ".join(map(repr, unsafe))
        notes.append(f"to drain, but not in drain.txt, which takes only Slurm's node names: {named}")
    misconfigured = any(answer.status == Exit.MISCONFIGURED for answer in given)
    status = status_of({row.outcome for row in rows}, interrupted=interrupted, misconfigured=misconfigured)
    if status == Exit.TOO_SMALL and not given:  # nobody was asked: a node that is too small answers that it is
        status = Exit.UNJUDGED
    return FleetReport(
        **{**about, "notes": (*about.get("notes", ()), *causes.notes(), *notes)},
        verdict=verdict_by(status),
        status=status,
        interrupted=interrupted,
        rows=tuple(rows),
    )


def unwritten(report: FleetReport, why: str) -> FleetReport:
    """Return a report that could not be written: inconclusive, unless a place fails."""
    status = report.status if report.status in (Exit.FAIL, Exit.INTERRUPTED) else Exit.UNJUDGED
    return dataclasses.replace(report, status=status, verdict=verdict_by(status), notes=(*report.notes, why))


def natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts n2 before n10."""
    return [(int(digits), "") if digits else (-1, text) for digits, text in re.findall(r"(\d+)|(\D+)", name)]


def clock_remark(answer: Answer, asked_at: float, seen_at: float) -> str:
    """Return that a node's clock is apart: it began before it was asked, or ended after it was seen; else empty."""
    ahead, behind = answer.ended_at - seen_at, asked_at - answer.began_at
    if (apart := max(ahead, behind)) <= 5:  # the times of a file on a shared file system lag by that much
        return ""
    off = "the times in its reports and logs are off, and tickets of the cluster may expire; set it by NTP"
    return f"its clock is at least {human_seconds(apart)} {'ahead' if ahead > behind else 'behind'}: {off}"


def _by_kind(answers: Sequence[Answer]) -> tuple[defaultdict[str, list[Finding]], defaultdict[str, list[str]]]:
    findings: defaultdict[str, list[Finding]] = defaultdict(list)
    remarks: defaultdict[str, list[str]] = defaultdict(list)
    ended = [member for member in members(answers) if member.run.numbers]
    for group in grouped((member.kind, member) for member in ended).values():
        for place, finding in agreements(group):
            findings[place].append(finding)
        for member, figure, value, middle, last_good in outliers(group):
            said = f"{member.run.run}: {words(figure, value, middle, last_good)}"
            if figure is SPEED and not member.run.disturbed:
                findings[member.answer.place].append(slow(said, value, last_good))
            else:
                remarks[member.answer.place].append("; ".join(filter(None, (said, member.run.disturbed))))
    return findings, remarks


def _odd_stacks(answers: Sequence[Answer]) -> Iterator[tuple[str, str]]:
    """Yield each place whose driver, library, weights or modes are others than those of most with the same device."""
    devices = (((m.run.run, m.run.fingerprint, m.run.kind.get("device", "")), m) for m in members(answers))
    for alike in grouped(devices).values():
        for name in dict.fromkeys(name for member in alike for name in member.run.kind):
            (usual, count), *others = Counter(member.run.kind.get(name, "none") for member in alike).most_common()
            if others and 2 * count > len(alike):
                for member in alike:
                    if (here := member.run.kind.get(name, "none")) != usual:
                        yield member.answer.place, f"{name} {here}, and {usual} on {count} of {len(alike)}"


class _Causes:
    """What went wrong on how many places: what most have in common is not the fault of a node."""

    def __init__(self, answers: Iterable[Answer]) -> None:
        self.tried: Counter[str] = Counter()
        self.failed: Counter[tuple[str, str]] = Counter()
        for answer in answers:
            for run in answer.runs:
                self.tried[run.run] += run.outcome != "skipped"
                self.failed.update((run.run, finding.check) for finding in run.failed)
                self.failed[run.run, ""] += _ended_early(answer, run)
                self.failed[run.run, NO_GPU] += _lacks_gpu(run)

    def of_node(self, run: str, check: str = "", fewest: int = FEWEST_FOR_A_MAJORITY) -> str:
        """Return on how many places this check failed, or the training did not end, where those are the minority.

        Below so many places the answer is empty, or with `fewest` of 1 that it is this place.
        """
        failed, tried = self.failed[run, check], self.tried[run]
        alone = tried >= fewest and (2 * failed < tried or tried < FEWEST_FOR_A_MAJORITY)
        return f"on {failed} of {tried} places" if alone else ""

    def notes(self) -> list[str]:
        """Return a sentence for each check that fails on half of the places or more."""
        return [
            f"{run}: {check or 'the training does not end'} on {count} of {self.tried[run]} places: look at the "
            "training and its stack, not at a node"
            for (run, check), count in self.failed.items()
            if self.tried[run] >= FEWEST_FOR_A_MAJORITY and 2 * count >= self.tried[run]
        ]


def _row(answer: Answer, findings: list[Finding], remarks: list[str], causes: _Causes) -> NodeRow:
    failed = [finding for finding in findings if finding.status is Status.FAILED]
    outcome: NodeOutcome = "fail" if failed else "error" if answer.problem else _own_outcome(answer)
    if outcome == "pass" and any(finding.status is Status.UNJUDGED and not finding.expected for finding in findings):
        outcome = "inconclusive"
    first = answer.runs[0] if answer.runs else None
    unjudged = [run for run in answer.runs if run.unjudged and run.outcome != "error"]  # else its end explains them
    told = (f"{run.run}: {run.reason}" for run in answer.runs if run.reason and run not in unjudged)
    reasons = [*filter(None, [answer.problem]), *told]
    if answer.status == Exit.PASS and _own_outcome(answer) == "inconclusive":
        reasons.append("its session ended with status 0 and passed no check: nothing was judged")
    if not (reasons or unjudged) and answer.status not in (*_BY_STATUS, None):
        reasons.append(f"its session ended with status {answer.status}: its output.log says why")
    return NodeRow(
        place=answer.place,
        node=answer.node,
        card=answer.card,
        kind=first.kind.get("device", "") if first else "",
        outcome=outcome,
        reason="; ".join(reasons),
        status=Exit.FAIL if failed else answer.status,
        passed=sum(run.passed for run in answer.runs),
        failed=tuple(f"{run.run}: {finding.check}" for run in answer.runs for finding in run.failed),
        unjudged=tuple(
            f"{run.run}: {', '.join(checks)}: {reason}"
            for run in unjudged
            for reason, checks in grouped((finding.detail, finding.check) for finding in run.unjudged).items()
        ),
        findings=tuple(findings),
        remarks=tuple(dict.fromkeys(remarks)),
        drain="; ".join(dict.fromkeys(_sick(answer, failed, causes))),
        figures=first.figures if first else {},
        session=answer.session,
        age_seconds=max(0.0, time.time() - answer.ended_at),
    )


def _own_outcome(answer: Answer) -> NodeOutcome:
    """Return the outcome of a session: that of its status, but no pass without a run that passed a check."""
    outcomes = {run.outcome for run in answer.runs}
    if (outcome := _BY_STATUS.get(answer.status, "error" if "error" in outcomes else "inconclusive")) != "pass":
        return outcome
    if "fail" in outcomes or any(run.failed for run in answer.runs):
        return "fail"
    judged = any(run.outcome == "pass" and run.passed > 0 for run in answer.runs)
    return "pass" if judged and outcomes <= {"pass", "skipped"} else "inconclusive"


def _sick(answer: Answer, failed: Iterable[Finding], causes: _Causes) -> Iterator[str]:
    """Yield why this node should take no further jobs: what it alone does, and what its hardware reports."""
    yield from (f"{finding.check}: {finding.detail}" for finding in failed)
    for run in answer.runs:
        for finding in run.failed:
            if finding.domain is Domain.HARDWARE:
                yield f"{run.run}: {finding.check}, hardware: {finding.evidence}"
            elif where := causes.of_node(run.run, finding.check):
                yield f"{run.run}: {finding.check} failed {where}"
        if _lacks_gpu(run) and (where := causes.of_node(run.run, NO_GPU, fewest=1)):
            yield f"{run.run}: {NO_GPU} {where}: {run.reason}"
        if _ended_early(answer, run) and (where := causes.of_node(run.run)):
            yield f"{run.run}: {run.reason or 'did not end'} ({where})"


def _ended_early(answer: Answer, run: RunAnswer) -> bool:
    """Return whether a training did not end, other than by a signal from outside, which is no fault of the node."""
    stopped = run.stopped or answer.status == Exit.INTERRUPTED
    return run.outcome == "error" and (answer.status == OVERDUE or not stopped)


def _lacks_gpu(run: RunAnswer) -> bool:
    """Return whether --require-gpu found no GPU: a failure with a domain, and without a failed check."""
    return run.outcome == "fail" and not run.failed and bool(run.domain)


def _with_engine(row: NodeRow | None, heard: Heard) -> NodeRow:
    """Return the row with what the engine says of its place; a node may be gone and its answer have come in late."""
    if row is None:
        place, reason = heard.place, heard.place.problem or "it was not asked before the session ended"
        silent: NodeOutcome = "skipped" if place.drained else "no answer"
        row = NodeRow(place=place.name, node=place.node, card=place.card, outcome=silent, reason=reason)
    if not heard.missing or (row.outcome != "no answer" and not heard.gone):
        return row
    outcome: NodeOutcome = "error" if row.outcome in ("pass", "skipped") else row.outcome
    drain = "; ".join(filter(None, (row.drain, heard.missing))) if heard.gone else row.drain
    return dataclasses.replace(row, outcome=outcome, reason=heard.missing, drain=drain)
