"""Fleets of made-up answers, for the tests of what is judged over nodes and of what shows it."""

from __future__ import annotations

import random
from dataclasses import replace

from tunecheck.core.finding import Domain, Finding, Status
from tunecheck.results.fleet import Answer, FleetReport, Heard, Place, RunAnswer
from tunecheck.results.fleet.judge import judge_fleet

RUN = RunAnswer(
    run="quick/tiny",
    outcome="pass",
    passed=46,
    fingerprint="51e122907b1b9864",
    kind={"device": "NVIDIA H100, 80 GiB", "driver": "570.86", "torch": "2.13.0"},
    deterministic=True,
    numbers={"loss of step": (4.5, 4.25, 4.125), "evaluation": (4.6, 4.2)},
    figures={"tokens_per_second": 2000.0, "peak_allocated_bytes": 2.0**30, "temperature_celsius": 60.0},
)
BROKEN = Finding(check="loss_oracle", status=Status.FAILED, measured=1.0, limit=1e-4, domain=Domain.WORKLOAD)


def answer(number: int, node: str = "", /, *, status: int = 0, problem: str = "", **changes) -> Answer:
    """A node's answer, with these changes of its run."""
    name = node or f"n{number}"
    figures = {**RUN.figures, "tokens_per_second": 2000.0 + random.Random(number).uniform(-40, 40)}
    run = replace(RUN, **{"figures": figures, **changes})
    return Answer(
        place=f"{name}-{number}" if node else name,
        node=name,
        host=name,
        began_at=100.0,
        ended_at=160.0,
        status=None if problem else status,
        problem=problem,
        session="" if problem else f"nodes/{name}/20261122T120000Z-7",
        runs=() if problem else (run,),
    )


def silent(name: str, reason: str, *, gone: bool = False) -> Heard:
    """A place without an answer."""
    return Heard(Place(name=name, node=name), missing=reason, gone=gone)


def heard(one: Answer) -> Heard:
    """A place that answered."""
    return Heard(Place(name=one.place, node=one.node, card=one.card), answer=one)


def judged(*told: Answer | Heard, **about) -> FleetReport:
    """The report on these answers and places."""
    given = {"started_at": "2026-11-22T12:00:00+00:00", "seconds": 75.0, "engine": "slurm", **about}
    return judge_fleet([heard(one) if isinstance(one, Answer) else one for one in told], **given)


def row_of(report: FleetReport, place: str):
    """The row of this place."""
    return next(row for row in report.rows if row.place == place)
