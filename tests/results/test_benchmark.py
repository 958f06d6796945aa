"""Trainers side by side: what the numbers of several turns come to, and how every report shows them."""

from __future__ import annotations

import dataclasses
import io
import math

import pytest
from rich.console import Console

from tunecheck.core.finding import Finding, Status
from tunecheck.report.files import summary_markdown
from tunecheck.report.page import page_html
from tunecheck.report.terminal import print_benchmark
from tunecheck.results import Entry, Report, RunReport, Tried
from tunecheck.results.comparison import benchmarks, comparisons
from tunecheck.results.stored import VERDICTS, write_verdict

LOSSES = (2.0, 1.0, 0.5)


def turn(trainer: str, number: int, rate: float, *, losses=LOSSES, **changes) -> RunReport:
    """One training of a benchmark."""
    row = RunReport(
        run=f"mine-{trainer}-{number}",
        tier="quick",
        model="tiny",
        outcome="pass",
        device="cpu",
        losses=losses,
        tokens_per_second=rate,
        peak_bytes=1000,
        peak_kind="resident",
        entry=Entry(comparison="quick/mine", name=trainer, turn=number),
    )
    return dataclasses.replace(row, **changes)


def report(*runs: RunReport) -> Report:
    """A session of these turns."""
    return Report(started_at="2026-11-22T12:00:00+00:00", seconds=10.0, verdict="pass", runs=runs)


def rows(*runs: RunReport) -> dict[str, tuple[str, ...]]:
    """Each trainer's cells after its name."""
    (benchmark,) = benchmarks(runs)
    return {name: tuple(cells) for name, *cells in benchmark.rows}


def test_rates_are_medians_and_ratios_are_those_of_a_turn():
    """A machine that is slow for a turn slows both trainers of it: the ratio stays."""
    runs = [turn("native", 1, 100), turn("trl", 1, 50), turn("trl", 2, 5), turn("native", 2, 10)]
    runs += [turn("native", 3, 80), turn("trl", 3, 44)]

    cells = rows(*runs)

    assert cells["native"][1:3] == ("80", "1.000")
    assert cells["trl"][1:3] == ("44", "0.500")


def test_losses_are_held_against_the_first_trainers_first_turn():
    """The largest difference of a step, relative; infinite where one is shorter or not finite."""
    other = turn("trl", 1, 1, losses=(2.0, 1.001, 0.5))
    short, lost = turn("trl", 1, 1, losses=(2.0,)), turn("trl", 1, 1, losses=(2.0, math.nan, 0.5))

    assert rows(turn("native", 1, 1), other)["trl"][5] == "1.0e-03"
    assert [rows(turn("native", 1, 1), run)["trl"][5] for run in (short, lost)] == ["inf", "inf"]


def test_the_worst_turn_is_the_verdict():
    """And what failed is named below the table."""
    failed = Finding(check="loss_oracle", status=Status.FAILED, detail="too large", measured=1.0, limit=0.1)
    runs = [turn("native", 1, 1), turn("trl", 1, 1), turn("trl", 2, 1, outcome="fail", findings=(failed,))]

    assert [cells[0] for cells in rows(*runs).values()] == ["pass", "fail"]
    assert benchmarks(runs)[0].notes == ("trl: failed loss_oracle",)


def test_a_turn_that_was_cut_off_says_nothing_of_its_losses():
    """It is in the verdict; a trainer's other turns are compared."""
    hung = Tried(purpose="train", device="cpu", outcome="hung", reason="requested", seconds=600.0)
    cut = turn("trl", 2, 1, losses=(2.0,), outcome="fail", attempts=(hung,))

    assert rows(turn("native", 1, 1), turn("trl", 1, 1), cut)["trl"] == (
        *("fail", "1", "1.000", "1000 B resident", "1.000", "0.0e+00", "2"),
    )


def test_what_cannot_be_believed_is_told():
    """Losses that are not the same in every turn, and a machine that others used."""
    (benchmark,) = benchmarks(
        [turn("native", 1, 1), turn("native", 2, 1, losses=(2.0, 1.0, 0.6)), turn("trl", 1, 1, others_busy_share=0.7)]
    )

    assert benchmark.notes == (
        "native: its losses differ between turns, so they cannot be reproduced",
        "other processes used up to 70% of the CPU time: do not trust these speeds",
    )


def test_a_turn_that_never_began_leaves_the_others_as_they_are():
    """Without a rate there is no ratio; a benchmark in which nothing trained is none."""
    skipped = turn("trl", 1, 1, losses=(), tokens_per_second=None, peak_bytes=None, outcome="skipped")

    assert rows(turn("native", 1, 5), skipped)["trl"] == ("skipped", "", "", "", "", "", "1")
    assert benchmarks([skipped]) == []


@pytest.mark.parametrize("where", ["terminal", "page", "summary"])
def test_every_report_shows_it(where, tmp_path):
    """The same cells; it is no comparison of strategies."""
    held = report(turn("native", 1, 100), turn("trl", 1, 50))
    write_verdict(held, tmp_path)
    held = VERDICTS.read(tmp_path / "verdict.json")
    console = Console(record=True, width=100, file=io.StringIO())
    if where == "terminal":
        print_benchmark(held, console)
        text = console.export_text()
    else:
        text = page_html(held, tmp_path) if where == "page" else summary_markdown(held)

    assert comparisons(held.runs) == []
    for words in ("trainers of quick/mine on tiny", "0.500", "trl", "loss differs by"):
        assert words in text
