"""summary.md: the report as GitHub Markdown, made for a step summary or an issue."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from suite.core.files import write_whole
from suite.core.finding import Finding
from suite.core.text import human_bytes, human_number, human_seconds, one_line
from suite.report.history import TITLES, in_short, title, told
from suite.results import Report, RunReport
from suite.results.comparison import HEADS, Comparison, comparisons, condensed
from suite.results.words import (
    company_words,
    domain_words,
    headline,
    machine,
    other_data,
    probe_loss_words,
    repaired,
    retries,
    training_loss_words,
    unjudged_groups,
    untold,
)

SUMMARY_FILE = "summary.md"
SIZE_LIMIT_BYTES = 60_000
"""GitHub refuses comments over 65,536 characters; a step summary may hold more, but nobody reads more."""
_CUT_NOTE = "\n*Cut here to stay readable: everything is in verdict.json.*\n"

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|~&$#])")


def write_summary(report: Report, folder: Path) -> Path:
    """The folder holds summary.md, whole and under 60 kB; returns its path. Raises SuiteError when it is unwritable."""
    path = folder / SUMMARY_FILE
    write_whole(path, summary_markdown(report))
    return path


def summary_markdown(report: Report) -> str:
    """What write_summary writes: whole lines, with a note where the rest was cut."""
    room = SIZE_LIMIT_BYTES - len(_CUT_NOTE.encode())
    kept: list[str] = []
    for line in _lines(report):
        room -= len(line.encode(errors="backslashreplace")) + 1
        if room < 0:
            return "\n".join(kept) + "\n" + _CUT_NOTE
        kept.append(line)
    return "\n".join(kept) + "\n"


def escaped(text: str) -> str:
    """The text as one line that Markdown shows as it is, inside a table too."""
    return _SPECIAL.sub(r"\\\1", one_line(text))


def _lines(report: Report) -> Iterator[str]:
    yield f"## tunecheck: {headline(report)}"
    yield from _table(condensed(report.runs))
    for comparison in comparisons(report.runs):
        yield from ("", *comparison_markdown(comparison))
    yield from _section("Failed", (line for run in report.runs for line in _failures(run)))
    yield from _section("Not as usual", _unusual(report))
    yield from _section("Not judged", (line for run in report.runs for line in _gaps(run)))
    yield from _section("Repeated", (_item(run, sentence) for run in report.runs for sentence in retries(run)))
    yield from _section("Other data", (_item(run, sentence) for run in report.runs for sentence in other_data(run)))
    yield from _section("Repaired", (_item(run, sentence) for run in report.runs for sentence in repaired(run)))
    yield from _section("Machine", (_item(run, words) for run in report.runs for words in company_words(run)))
    skipped = (run for run in condensed(report.runs) if run.outcome == "skipped")
    yield from _section("Skipped", (_item(run, run.reason) for run in skipped))
    yield from _section("The nights before", _quiet(report))
    environment = ", ".join(filter(None, (f"tunecheck {report.tunecheck_version}", machine(report.environment))))
    yield from ("", f"Environment: {escaped(environment)}")
    yield from ("", f"Started {escaped(report.started_at)}, took {human_seconds(report.seconds)}.")


def comparison_markdown(comparison: Comparison) -> Iterator[str]:
    """The comparison's title as a heading, by what it is ranked, its table and its notes, a line each."""
    yield from (f"### {escaped(comparison.title)}", "", f"{comparison.ranking.capitalize()}.", "")
    yield from (f"| {' | '.join(HEADS)} |", f"|--:|---|--:|{'---|' * (len(HEADS) - 3)}")
    for row in comparison.rows():
        yield f"| {' | '.join(map(escaped, row))} |"
    if notes := comparison.notes():
        yield from ("", *(f"- {escaped(note)}" for note in notes))


def _table(runs: Sequence[RunReport]) -> Iterator[str]:
    if not runs:
        return
    losses = "training loss | probe loss"
    yield from (
        "",
        f"| run | outcome | device | passed | failed | unjudged | {losses} | peak memory | tokens/s | time |",
    )
    yield "|---|---|---|--:|--:|--:|---|---|--:|--:|--:|"
    for run in runs:
        counts = (len(run.passed), len(run.failed), len(run.unjudged))
        peak = "" if run.peak_bytes is None else f"{human_bytes(run.peak_bytes)} {escaped(run.peak_kind)}"
        rate = "" if run.tokens_per_second is None else human_number(round(run.tokens_per_second, 1))
        time = human_seconds(run.seconds) if run.seconds else ""
        head = (escaped(run.name), run.outcome, escaped(run.device))
        went = (training_loss_words(run), probe_loss_words(run))
        yield f"| {' | '.join([*head, *map(str, counts), *went, peak, rate, time])} |"


def _section(title: str, lines: Iterator[str]) -> Iterator[str]:
    """The lines under a heading; nothing at all when there are none."""
    for place, line in enumerate(lines):
        if place == 0:
            yield from ("", f"### {title}", "")
        yield line


def _failures(run: RunReport) -> Iterator[str]:
    if run.outcome == "fail" and run.reason:
        yield _item(run, run.reason)
    for finding in run.failed:
        yield from _failure(run, finding)


def _failure(run: RunReport, finding: Finding) -> Iterator[str]:
    yield f"- **{escaped(run.name)}: {escaped(finding.check)}** {escaped(finding.detail)}".rstrip()
    yield f"  - measured {escaped(human_number(finding.measured))}, limit {escaped(human_number(finding.limit))}"
    yield f"  - usually means: {escaped(finding.meaning)}"
    yield f"  - what to do: {escaped(finding.remedy)}"
    if domain := domain_words(finding):
        yield f"  - domain: {escaped(domain)}"


def _gaps(run: RunReport) -> Iterator[str]:
    if run.outcome in ("error", "inconclusive") and untold(run):
        yield _item(run, untold(run))
    for group in unjudged_groups(run):
        yield _item(run, f"{', '.join(group.checks)}: {group.reason}{' (as expected)' if group.expected else ''}")


def _unusual(report: Report) -> Iterator[str]:
    for status, words in TITLES.items():
        for standing in report.figure_comparisons:
            if standing.status == status:
                head = f"**{words}** {escaped(standing.run)}: {escaped(title(standing))}"
                yield f"- {head}: {escaped(told(standing))}"


def _quiet(report: Report) -> Iterator[str]:
    yield from (f"- {escaped(run)}: {escaped(sentence)}" for run, sentence in in_short(report.figure_comparisons))
    yield from (f"- {escaped(note)}" for note in report.history_notes)


def _item(run: RunReport, text: str) -> str:
    return f"- {escaped(run.name)}: {escaped(text)}"
