"""Verdicts and baselines that older versions wrote are still read: `standings`, and `nights` for sessions."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tunecheck.core.finding import Domain, Finding, Status
from tunecheck.results import VERDICT_SCHEMA, Report, RunReport
from tunecheck.results.baseline import FigureBaseline, FigureComparison
from tunecheck.results.verdict import read_verdict, verdict_json

WORSE = FigureComparison(
    run="quick/tiny", figure="probe_loss", value=4.0, status="worse", sessions=9, median=3.0, limit=3.1, previous=3.0
)
FAILED = Finding(check="finite", status=Status.FAILED, domain=Domain.WORKLOAD, evidence="trained on the CPU")
REPORT = Report(
    started_at="2026-11-21T04:24:00+00:00",
    seconds=12.0,
    verdict="fail",
    runs=(RunReport(run="tiny", tier="quick", model="tiny", outcome="fail", findings=(FAILED,)),),
    figure_comparisons=(WORSE,),
)


def older(schema: int) -> dict[str, object]:
    """The report as that schema wrote it."""
    written = json.loads(verdict_json(REPORT)) | {"schema": schema}
    rows = written.pop("figure_comparisons")
    for row in rows:
        row["nights"] = row.pop("sessions")
    return written if schema == 2 else {**written, "standings": rows}


@pytest.mark.parametrize("schema", [2, 3])
def test_an_older_verdict_is_read(tmp_path: Path, schema: int) -> None:
    """With its figures under today's names; schema 2 had none."""
    path = tmp_path / "verdict.json"
    path.write_text(json.dumps(older(schema)), encoding="utf-8")
    figures = () if schema == 2 else (WORSE,)

    assert read_verdict(path) == dataclasses.replace(REPORT, schema=schema, figure_comparisons=figures)


def test_todays_verdict_comes_back(tmp_path: Path) -> None:
    """Equal, the domain of a finding as an enum."""
    path = tmp_path / "verdict.json"
    path.write_text(verdict_json(REPORT), encoding="utf-8")

    assert read_verdict(path) == REPORT
    assert read_verdict(path).schema == VERDICT_SCHEMA
    assert read_verdict(path).runs[0].findings[0].domain is Domain.WORKLOAD


def test_an_older_baseline_is_read() -> None:
    """It counted nights."""
    held = {"median": 1.0, "deviation": 0.1}

    assert FigureBaseline.from_json({**held, "nights": 9}) == FigureBaseline.from_json({**held, "sessions": 9})
