"""Nights for the tests of the history: figures recorded on a real machine, and sessions of made-up traces on disk."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from sessions import session, write_trace
from traces import healthy

from tunecheck.core.trace import Trace
from tunecheck.history.store import HistoryEntry, Key
from tunecheck.results import Report
from tunecheck.results.stored import write_verdict

RUN = "quick/tiny"
KEY = Key(fingerprint="51e122907b1b9864", device="AMD EPYC, 2 cores", majors="torch 2, transformers 5")
CPU = {"cpu": {"model": "made up", "usable_cores": 2}, "git": {"commit": "0123456789abcdef"}}


def entry(number: int, *, key: Key = KEY, outcome: str = "pass", card: str = "", needed: int | None = None, **figures):
    """A session of November with these figures."""
    started_at = f"2026-11-{number:02}T01:30:00+00:00"
    return HistoryEntry(
        session=f"202611{number:02}T013000Z-7",
        started_at=started_at,
        run=RUN,
        key=key,
        versions={"torch": "2.13.0"},
        outcome=outcome,
        figures={"live_tensor_bytes": 683000.0, "probe_loss": 6.245, **figures},
        card=card,
        needed_bytes=needed,
    )


def write_session(reports: Path, number: int, *traces: Trace) -> tuple[Report, Path]:
    """The folder of a finished session of November, with its verdict; by default of one healthy run."""
    folder = reports / f"202611{number:02}T013000Z-7"
    folder.mkdir(parents=True)
    report = dataclasses.replace(
        session(folder, *(on_cpu(trace) for trace in traces or (healthy(),))),
        started_at=f"2026-11-{number:02}T01:30:00+00:00",
    )
    write_verdict(report, folder)
    return report, folder


def on_cpu(trace: Trace) -> Trace:
    """The trace with a machine in its header."""
    return Trace(dataclasses.replace(trace.header, environment=CPU), trace.attempts)


__all__ = ["CPU", "KEY", "RUN", "entry", "on_cpu", "write_session", "write_trace"]
