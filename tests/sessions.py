"""Sessions of made-up traces, judged and written as a tier session would write them."""

from __future__ import annotations

from pathlib import Path

from metered import MIB, allocated_bytes, metered
from traces import with_record

from tunecheck.checks import asked_of
from tunecheck.core import evidence as e
from tunecheck.core.trace import Trace, encode
from tunecheck.results import Report, RunReport, summarize, verdict_of


def session(folder: Path, *traces: Trace, also: tuple[RunReport, ...] = (), interrupted: bool = False) -> Report:
    """A report of these traces, judged, and their files in the folder."""
    rows = []
    for number, trace in enumerate(traces):
        file = folder / f"run-{number}.jsonl"
        write_trace(file, trace)
        asked = asked_of(trace.settings["features"], trace.settings["checks"])
        rows.append(summarize(trace, [check(trace) for check in asked.values()], trace_file=file.name, seconds=80.0))
    runs = (*rows, *also)
    return Report(
        started_at="2026-11-21T04:04:30+00:00",
        seconds=75.0,
        verdict=verdict_of(runs, interrupted),
        environment={"cpu": {"model": "made up"}, "versions": {"torch": "2.13.0"}},
        command="pytest -m quick",
        interrupted=interrupted,
        runs=runs,
    )


def write_trace(path: Path, trace: Trace) -> None:
    """The trace as its run would have left it."""
    records = [trace.header]
    for attempt in trace.attempts:
        records += [attempt.start, *attempt.records, *([attempt.end] if attempt.end else [])]
    path.write_text("".join(encode(record) + "\n" for record in records), encoding="utf-8")


def leaking(steps: int = 200) -> Trace:
    """A run on a card whose memory grows by 1 MiB a step, beyond its ceiling."""
    trace = metered(steps=steps, allocated=lambda rng, step: allocated_bytes(rng, step) + step * MIB)
    return with_record(trace, e.Phase, 2, peak_allocated_bytes=1100 * MIB)
