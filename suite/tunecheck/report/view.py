"""The view model of a session: what every report says, in words; a renderer adds only the form."""

import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from tunecheck.checks import CHECKS, SUBJECTS
from tunecheck.core.check import grouped, some
from tunecheck.core.finding import Domain, Finding, Status
from tunecheck.core.frozen import Frozen
from tunecheck.core.paths import shipped_folder
from tunecheck.core.text import beside_limit, counted, human_bytes, human_seconds, one_line
from tunecheck.results import Report, RunReport
from tunecheck.results.baseline import FEWEST_SESSIONS, FIGURES, FigureComparison, change
from tunecheck.results.causes import ruled_out
from tunecheck.results.comparison import SideBySide, benchmarks, comparisons, condensed

BLOCK_COLUMNS = 80
"""Width of a failure block as plain text, for pytest, its JUnit file and an IDE, none of which wraps by words."""
_BREAK, _LONG_WORD = "\u200b", re.compile(r"\S{40,}")
MOST_NAMES = 5
"""Unjudged checks that are named where room is short."""
MOST_REASONS = 4
"""Reasons of unjudged checks that are given for one run where room is short."""
STATUS_TITLES = {"worse": "REGRESSION", "suspect": "SUSPECTED REGRESSION", "better": "improvement"}
"""Statuses that a report lists one by one, the most urgent first."""
REMARKS: dict[str, Callable[[RunReport], Sequence[str]]] = {
    "Repeated": lambda run: run.retries,
    "Other data": lambda run: [f"trained on {run.data}, not on {run.data_instead_of}"] if run.data_instead_of else (),
    "Repaired": lambda run: [f"repaired on {repair}" for repair in run.repairs],
    "Ignored": lambda run: [
        *(f"ignored: {finding.check}: {finding.detail} ({finding.meant})" for finding in run.ignored),
        *(f"{check} is ignored but found nothing: remove --ignore {check}" for check in run.needless),
    ],
    "Judged in part": lambda run: [f"not judged further: {reason}" for reason in run.course],
    "CPU contention": lambda run: [run.cpu_contention] if run.cpu_contention else (),
}
"""Kinds of remarks about a run, in the order of a report, to its sentences."""


class _Wrapper(textwrap.TextWrapper):
    """Wraps at spaces, and the long names of tensors at their dots."""

    wordsep_simple_re = re.compile(rf"(\s+)|(?<={_BREAK})")


class Failure(Frozen):
    """A check that failed, or a suspicion, which is a question."""

    run: str
    """Empty where the failure is shown in a place that names it."""
    check: str
    rows: tuple[tuple[str, str], ...]
    """Label and text from the rule to the check's page; without those that are unknown."""
    status: str = "FAILED"
    """Or SUSPECTED: a question."""

    @property
    def summary(self) -> str:
        """Numbers in one line, else what was found: "measured 0.562972, limit 0.7"."""
        return f"measured {found['measured']}" if "measured" in (found := dict(self.rows)) else found.get("detail", "")

    @property
    def lines(self) -> list[str]:
        return [f"{label}: {one_line(text)}" for label, text in self.rows]

    @property
    def indent(self) -> int:
        return 4 + max((len(label) for label, _ in self.rows), default=0)

    def block(self, columns: int = BLOCK_COLUMNS) -> str:
        """Return the failure as plain text: a title, then its rows aligned below their labels."""
        indent = self.indent
        lines = [f"{self.run}: {self.check}" if self.run else self.check]
        for label, text in self.rows:
            head = f"  {label}".ljust(indent)
            wrapper = _Wrapper(columns, initial_indent=head, subsequent_indent=" " * indent, break_on_hyphens=False)
            breakable = _LONG_WORD.sub(lambda word: word[0].replace(".", f".{_BREAK}"), one_line(text))
            lines.append(wrapper.fill(breakable).replace(_BREAK, ""))
        return "\n".join(lines)


class Unjudged(Frozen):
    """Checks of one run that are unjudged for the same reason."""

    checks: tuple[str, ...]
    reason: str
    expected: bool

    @property
    def names(self) -> str:
        return some(self.checks, MOST_NAMES)


class RunView(Frozen):
    """A run: the cells of its row, then what is said about it below the table."""

    run: RunReport
    name: str
    outcome: str
    training_loss: str
    probe_loss: str
    peak: str
    tokens_per_second: str
    seconds: str
    reason: str
    """Why there is no judgement, or no training to the end, where the findings do not say it."""
    remarks: Mapping[str, Sequence[str]]
    """What is out of the ordinary about it and no finding, by kind, see REMARKS."""
    failures: tuple[Failure, ...]
    suspicions: tuple[Failure, ...]
    unjudged: tuple[Unjudged, ...]
    """By reason, the unexpected ones first."""
    subjects: Mapping[str, Sequence[Finding]]

    @property
    def counts(self) -> tuple[int, int, int]:
        return len(self.run.passed), len(self.run.failed), len(self.run.unjudged)

    @property
    def summary(self) -> str:
        """What its outcome rests on, in a sentence."""
        passed, failed, unjudged = self.counts
        return f"{counted(passed, 'check')} passed, {failed} failed; {unjudged} cannot be judged in this training."

    @property
    def failed_without_check(self) -> bool:
        """Whether something else than a check failed the run, such as a missing GPU under --require-gpu."""
        return self.outcome == "fail" and not self.failures

    def folded(self, *, expected: bool) -> list[Unjudged]:
        """Return the unjudged checks of this kind by reason; beyond MOST_REASONS the other reasons are one group.

        All are one where the run itself says why nothing was judged: that is what has to be read.
        """
        groups = [group for group in self.unjudged if group.expected is expected]
        if self.reason and not self.run.passed and not self.run.failed:
            names = tuple(check for group in groups for check in group.checks)
            why = "no check was judged, for the reason above; report.html says what each check lacks"
            return [Unjudged(checks=names, reason=why, expected=False)] if names and not expected else []
        if len(groups) <= MOST_REASONS:
            return groups
        rest = groups[MOST_REASONS - 1 :]
        checks = tuple(check for group in rest for check in group.checks)
        reason = f"{len(rest)} other reasons, each in report.html"
        return [*groups[: MOST_REASONS - 1], Unjudged(checks=checks, reason=reason, expected=expected)]


class SessionView(Frozen):
    """A session."""

    report: Report
    runs: tuple[RunView, ...]

    @property
    def coverage(self) -> tuple[str, ...]:
        """What the verdict on trainings of the user's own rests on, by subject: "rows 5/6"; () where nothing was."""
        findings = [finding for run in self.runs for finding in run.run.findings]
        judged = [finding for finding in findings if finding.status is not Status.UNJUDGED]
        if not judged or any(run.run.tier != "watch" for run in self.runs):
            return ()
        counts = Counter(SUBJECTS.get(finding.check) for finding in judged)
        return tuple(f"{name} {counts[name]}/{len(asked)}" for name, asked in _by_subject(findings).items())

    @property
    def unjudged_as_expected(self) -> str:
        """Number of the checks that the runs themselves rule out, and where each one's reason is; empty for none."""
        count = sum(len(group.checks) for run in self.runs for group in run.unjudged if group.expected)
        where = "`tunecheck explain` with the report's folder" if self.coverage else "report.html"
        return f"not judged: {counted(count, 'check')}; {where} says why of each" if count else ""

    @cached_property
    def table(self) -> tuple[RunView, ...]:
        """A row a run; those of one comparison that were skipped for one reason are a single row."""
        return tuple(run_view(run) for run in condensed(self.report.runs))

    @cached_property
    def comparisons(self) -> tuple[SideBySide, ...]:
        return tuple(comparisons(self.report.runs))

    @cached_property
    def benchmarks(self) -> tuple[SideBySide, ...]:
        return tuple(benchmarks(self.report.runs))

    @property
    def side_by_side(self) -> tuple[SideBySide, ...]:
        return (*self.comparisons, *self.benchmarks)

    @property
    def failures(self) -> tuple[Failure, ...]:
        return tuple(failure for run in self.runs for failure in run.failures)

    @property
    def suspicions(self) -> tuple[Failure, ...]:
        return tuple(suspicion for run in self.runs for suspicion in run.suspicions)

    @cached_property
    def figures(self) -> tuple[tuple[str, str, str], ...]:
        """Status, title and sentence of each figure that differs from its baseline, regressions first."""
        return tuple(
            (status, f"{words} {comparison.run}: {FIGURES[comparison.figure].title}", sentence(comparison))
            for status, words in STATUS_TITLES.items()
            for comparison in self.report.figure_comparisons
            if comparison.status == status
        )

    @cached_property
    def history(self) -> tuple[str, ...]:
        """What else there is to say about previous sessions, a sentence each."""
        lines = [f"{run}: {words}" for run, words in unremarkable(self.report.figure_comparisons)]
        return (*lines, *(f"history: {note}" for note in self.report.history_notes))

    @property
    def environment(self) -> str:
        return ", ".join(filter(None, (f"tunecheck {self.report.tunecheck_version}", machine(self.report.environment))))

    @property
    def seconds(self) -> str:
        return human_seconds(self.report.seconds)


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
    """Return what is known of the machine in a line, but not tunecheck's version, which is the running code's."""
    cpu, git = environment.get("cpu") or {}, environment.get("git") or {}
    system = {"python": environment.get("python"), **(environment.get("versions") or {})}
    parts = [
        *(f"{gpu.get('name')} {human_bytes(gpu.get('total_bytes'))}" for gpu in environment.get("gpus") or ()),
        cpu.get("model"),
        cpu.get("usable_cores") and counted(cpu["usable_cores"], "core"),
        human_bytes(environment.get("ram_total_bytes")),
        environment.get("platform"),
        *(f"{name} {version}" for name, version in system.items() if version and name != "tunecheck"),
        git.get("commit") and f"commit {git['commit'][:12]}{' with local changes' if git.get('dirty') else ''}",
    ]
    return ", ".join(part.strip() for part in parts if part)


def session_view(report: Report) -> SessionView:
    return SessionView(report=report, runs=tuple(run_view(run) for run in report.runs))


def run_view(run: RunReport) -> RunView:
    """Return the view of a run."""
    reasons = grouped(((finding.expected, finding.detail), finding.check) for finding in run.unjudged)
    stated = run.outcome == "inconclusive" and any(not finding.expected for finding in run.unjudged)
    return RunView(
        run=run,
        name=run.name,
        outcome=run.outcome,
        training_loss=loss_words(run.losses[0], run.losses[-1]) if run.losses else "",
        probe_loss=loss_words(run.probe_loss_start, run.probe_loss_end),
        peak="" if run.peak_bytes is None else f"{human_bytes(run.peak_bytes)} {run.peak_kind}",
        tokens_per_second="" if run.tokens_per_second is None else f"{run.tokens_per_second:.1f}",
        seconds=human_seconds(run.seconds) if run.seconds else "",
        reason="" if stated else "; attribution: ".join(filter(None, (run.reason, domain_words(run)))),
        remarks={kind: sentences(run) for kind, sentences in REMARKS.items()},
        failures=tuple(_with_consequences(run, run.failed)),
        suspicions=tuple(_with_consequences(run, run.suspected)),
        unjudged=tuple(Unjudged(checks=tuple(c), reason=why, expected=exp) for (exp, why), c in reasons.items()),
        subjects=_by_subject(run.findings),
    )


def _with_consequences(run: RunReport, findings: Sequence[Finding]) -> Iterator[Failure]:
    for finding in findings:
        if not finding.because:
            also = [other for other in run.findings if other.because == finding.check]
            yield failure(run.name, finding, also=also, not_by=ruled_out(finding, run.findings))


def failure(run_name: str, finding: Finding, *, also: Sequence[Finding] = (), not_by: Sequence[str] = ()) -> Failure:
    """Return the view of a finding that did not pass, what it also explains, and what rules causes out."""
    suspected = finding.status is Status.SUSPECTED
    command = "" if run_name.startswith("watch/") else "tunecheck run "
    answer = f'{command}--ignore {finding.check}="WHY"' if finding.check in CHECKS else ""
    passed = f"{', '.join(not_by)}: passed" if not_by else ""
    if suspected:
        causes = {"is it meant?": finding.meant, "if so": answer, "if not": finding.meaning, "not the cause": passed}
    else:
        told = finding.domain != Domain.WORKLOAD and finding.evidence  # the script's own, as nearly always
        blamed = domain_words(finding) if told else ""
        causes = {"usually means": finding.meaning, "not the cause": passed, "attribution": blamed}
    unknown = finding.measured is None and finding.limit is None
    rows = {
        "rule": finding.rule,
        "measured": "" if unknown else beside_limit(finding.measured, finding.limit),
        "detail": finding.detail,
        "where": "; ".join(map(str, finding.places)),
        **causes,
        "what to do": finding.remedy,
        "if it is meant": "" if suspected else answer,
        "also failed": _because([other for other in also if other.status is Status.FAILED]),
        "also suspected": _because([other for other in also if other.status is Status.SUSPECTED]),
        "read more": f"tunecheck explain {finding.check}" if finding.check in CHECKS else "",
    }
    shown = tuple((label, text) for label, text in rows.items() if text)
    return Failure(run=run_name, check=finding.check, rows=shown, status="SUSPECTED" if suspected else "FAILED")


def _because(found: Sequence[Finding]) -> str:
    """Return these consequences with what they measured: "because of it: loss_oracle (measured 0.4, limit 0.0001)"."""
    told = [f.check + ("" if f.measured is None else f" (measured {beside_limit(f.measured, f.limit)})") for f in found]
    return f"because of it: {', '.join(told)}" if told else ""


def rule(check: str) -> str:
    """Return a check's rule as a sentence; empty for a check that this version does not know."""
    # made without its limits, which only a run has
    return object.__new__(CHECKS[check]).question if check in CHECKS else ""


def check_page(check: str) -> str:
    """Return the page of a check as Markdown; one of another package has no more than its own words."""
    if (page := shipped_folder() / "docs" / "checks" / f"{check}.md").exists():
        return re.sub(r"\[(`\w+`)\]\(\w+\.md\)", r"\1", page.read_text(encoding="utf-8").partition("-->\n")[2])
    known = CHECKS[check]
    return f"# {check}\n\n**{rule(check)}**\n\n## Likely causes\n\n{known.meaning}\n\n## What to do\n\n{known.remedy}\n"


def _by_subject(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    names = (*SUBJECTS.values(), "other")  # the last for checks that this version does not know
    groups = {name: [f for f in findings if SUBJECTS.get(f.check, "other") == name] for name in names}
    return {name: group for name, group in groups.items() if group}


def sentence(comparison: FigureComparison) -> str:
    """Return the value, its baseline and limit, the previous value, and which versions changed since."""
    amount = FIGURES[comparison.figure].amount
    parts = [amount(comparison.value)]
    if comparison.median is not None and comparison.limit is not None:
        parts.append(f"baseline {amount(comparison.median)} ({baseline_source(comparison)})")
        parts.append(f"limit {amount(comparison.limit)}")
    if comparison.previous is not None:
        parts.append(f"previous session {amount(comparison.previous)}")
    words = ", ".join(parts)
    if comparison.status == "suspect":
        words += "; a regression if the next session is worse too"
    return f"{words}; changed since: {comparison.changed}" if comparison.changed else words


def baseline_source(comparison: FigureComparison) -> str:
    """Return what the baseline was computed from: "median of 12 sessions"."""
    where = f" in {comparison.baseline}" if comparison.baseline else ""
    return f"median of {counted(comparison.sessions, 'session')}{where}"


def relative_change(before: float, after: float) -> str:
    """Return the relative change: "+3.1 %"; empty where it is no number."""
    return "" if (share := change(before, after)) is None else f"{share:+.1%}".replace("%", " %")


def unremarkable(comparisons: Sequence[FigureComparison]) -> Iterator[tuple[str, str]]:
    """Yield a run and a sentence about its figures within the baseline, or without one; nothing for a first session."""
    for run, of_run in grouped((comparison.run, comparison) for comparison in comparisons).items():
        if steady := [one for one in of_run if one.status == "steady"]:
            sessions = f"{baseline_source(steady[0])}{' or more' if len({one.sessions for one in steady}) > 1 else ''}"
            yield run, f"{counted(len(steady), 'figure')} within the baseline ({sessions})"
        if new := [one for one in of_run if one.status == "no baseline" and one.previous is not None]:
            sessions = f"no baseline yet: {new[0].sessions} of {FEWEST_SESSIONS} sessions"
            shares = {FIGURES[one.figure].title: relative_change(one.previous or 0.0, one.value) for one in new}
            since = ", ".join(f"{title} {share}" for title, share in shares.items() if share)
            yield run, f"{sessions}; against the previous one: {since}"
