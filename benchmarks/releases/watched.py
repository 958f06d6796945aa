"""A command under `tunecheck watch` in another environment, and what the verdict says of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunecheck.core.errors import SuiteError
from tunecheck.core.paths import project_folder
from tunecheck.results.stored import VERDICT_FILE

LIMIT_SECONDS = 1800
OF_ONE_PROCESS = re.compile(r"-rank\d")
"""In the name of a trace that was not merged with those of the other processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a command took, its own processes included."""

    cpu_seconds: float
    """User and system time."""
    peak_mib: float
    """Largest resident memory of one process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What `tunecheck watch` said of one training."""

    outcome: str
    failed: dict[str, str]
    """Failed check to its detail."""
    passed: int
    suspected: dict[str, str]
    """Check that asks whether something is meant, to its detail."""
    unjudged: dict[str, str]
    """Unjudged check to the reason."""
    cost: Cost
    reason: str = ""


def watched(
    python: Path,
    training: Sequence[str],
    *,
    steps: int,
    variables: Mapping[str, str] | None = None,
    expect: Sequence[str] = (),
) -> Seen:
    """Run this training under `tunecheck watch` and return what the verdict says.

    Raises SuiteError where there is no verdict, or no single one of several processes.
    """
    with tempfile.TemporaryDirectory() as reports:
        options = ["--steps", str(steps), *(word for expected in expect for word in ("--expect", expected))]
        command = [str(python), "-m", "tunecheck.cli", "watch", *options, "--", *training]
        path = os.pathsep.join([str(project_folder()), *filter(None, [os.environ.get("PYTHONPATH")])])
        cost, errors, _ = run(command, {**(variables or {}), "TUNECHECK_REPORTS": reports, "PYTHONPATH": path})
        verdicts = list(Path(reports).glob(f"*/{VERDICT_FILE}"))
        if not verdicts:
            raise SuiteError(f"no verdict was written: {' '.join(training)}: {errors.strip()[-600:]}")
        return seen(json.loads(verdicts[0].read_text(encoding="utf-8")), cost, errors)


def run(command: Sequence[str], variables: Mapping[str, str]) -> tuple[Cost, str, int]:
    """Run the command offline and return what it took, its errors' text and its exit status.

    Raises SuiteError where it takes too long.
    """
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **variables}
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            ["timeout", str(LIMIT_SECONDS), *command], env=environment, stdout=subprocess.DEVNULL, stderr=errors
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode == 124:
            raise SuiteError(f"no end after {LIMIT_SECONDS} s: {' '.join(command)}")
        errors.seek(0)
        cost = Cost(cpu_seconds=round(used.ru_utime + used.ru_stime, 1), peak_mib=round(used.ru_maxrss / 1024))
        return cost, errors.read(), process.returncode


def seen(verdict: dict[str, Any], cost: Cost, errors: str) -> Seen:
    """Return what this verdict says. Raises SuiteError where several processes did not come to one."""
    if apart := [run["trace_file"] for run in verdict["runs"] if OF_ONE_PROCESS.search(run["trace_file"] or "")]:
        raise SuiteError(f"several processes were judged each by itself, so that nothing compares them: {apart}")
    findings = [finding for run in verdict["runs"] for finding in run["findings"]]
    reasons = "; ".join(run["reason"] for run in verdict["runs"] if run["reason"])
    if verdict["verdict"] not in ("pass", "fail") and errors.strip():
        reasons += f" ({errors.strip().splitlines()[-1]})"

    def told(status: str) -> dict[str, str]:
        return {f["check"]: f["detail"] for f in findings if f["status"] == status}

    return Seen(
        outcome=verdict["verdict"],
        failed=told("failed"),
        passed=len(told("passed")),
        suspected=told("suspected"),
        unjudged=told("unjudged"),
        cost=cost,
        reason=reasons,
    )
