"""What the sweeps over every moment have left: a full disk at each write, a signal at each import and at times."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from tunecheck.core.paths import project_folder

FULL_DISK, SIGNALS = "reports/full-disk.json", "reports/interrupts.json"
HEAD = """
## Faults at every moment

**A full disk at every write.** We repeated a healthy session once for each of its writes (`python -m
benchmarks.chaos.full_disk`). The disk was full from that write on, or for that write only (`--once`). Every session
that passed had written its verdict.json. No session without a verdict.json exited with 0.

**A signal at every import.** Each command got SIGINT, SIGTERM or SIGHUP, at each of its imports or at eight points in
time (`python -m benchmarks.chaos.interrupts`). Some signals went to the whole process group, as from a terminal. Every
command exited with 2 and without a traceback, or had already finished.

**Malformed input.** `TUNECHECK_FUZZ=24 pytest tests/test_fuzz.py` tries 9,240 malformed keys, files, traces,
verdicts, rows and command lines. On 2026-11-22 each ended with a message and a
[documented exit status](cli.md#exit-statuses).

| what | attempts | wrong | exit statuses |
|---|--:|--:|---|
"""


def known(path: str) -> dict[str, Any]:
    """Return what a report holds; nothing where it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads((project_folder() / path).read_text(encoding="utf-8"))
        return found
    return {}


def keep(path: str, part: str, found: Mapping[str, Any]) -> None:
    """Put this part into a report, whose other parts stay."""
    payload = json.dumps({**known(path), part: found}, indent=1)
    (project_folder() / path).write_text(f"{payload}\n", encoding="utf-8")


def lines() -> list[str]:
    """Return the section of docs/reliability.md."""
    rows = [*_full_disk(), *_signals()]
    return [*HEAD.splitlines(), *(f"| {' | '.join(map(str, row))} |" for row in rows)] if rows else []


def _full_disk() -> Iterator[tuple[str, int, int, str]]:
    for kind, part in known(FULL_DISK).items():
        sessions = part["sessions"]
        ends = Counter((one["status"], one["verdict"] or "no verdict") for one in sessions)
        told = ", ".join(f"{count} x {status} ({verdict})" for (status, verdict), count in sorted(ends.items()))
        yield f"disk: {kind}, of {part['writes']}", len(sessions), sum(bool(one["problems"]) for one in sessions), told


def _signals() -> Iterator[tuple[str, int, int, str]]:
    for command, part in known(SIGNALS).items():
        ends = ", ".join(f"{count} x {status}" for status, count in part["statuses"].items())
        yield f"signals: `tunecheck {command}`", part["sent"], part["wrong"], ends
