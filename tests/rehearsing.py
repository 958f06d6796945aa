"""Which rehearsals run with the self-tests, and which only with scripts/rehearse-gpu.sh."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import tiny
from in_process import train_here

import tunecheck.runner.preload  # noqa: F401 - bitsandbytes cannot be imported where the fake card is there already
from tunecheck.config import find_run, load_run
from tunecheck.core.finding import Finding, Status
from tunecheck.core.trace import Trace

slow = pytest.mark.skipif("TUNECHECK_REHEARSE" not in os.environ, reason="slow: scripts/rehearse-gpu.sh runs it")


def rehearsed(folder: Path, *settings: str, faults: tuple = (), gpu: bool = False) -> Trace:
    """The trace of the tiny quick run in this process, in fp32, with these settings."""
    # on the shipped rows: what a probe keeps is held to a share of the memory, which short rows hardly take
    shared = [setting for setting in tiny.RANDOM if setting != "device=cpu"]
    device = ["device=cuda", "vram=null"] if gpu else ["device=cpu"]
    run = load_run(find_run("quick/smollm2-135m-qlora"), [*shared, *device, *settings])
    return train_here(run, folder, *faults, gpu=gpu)


def findings(trace: Trace, *settings: str) -> list[Finding]:
    """What the tiny quick run's checks find in this trace."""
    run = load_run(find_run("quick/smollm2-135m-qlora"), [*tiny.SETTINGS, *settings])
    return [check(trace) for check in run.resolved_checks().values()]


def failed(trace: Trace, *settings: str) -> set[str]:
    """Names of the checks that fail."""
    return {finding.check for finding in findings(trace, *settings) if finding.status is Status.FAILED}
