"""tunecheck itself, as `tunecheck watch` judges the script."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.causes import BUG
from benchmarks.peers.scenarios import Scenario
from benchmarks.scripts.bugs import MISTAKES
from benchmarks.scripts.script import judged

LISTENED = 10
"""Steps, the command's default."""


def said(scenario: Scenario, folder: Path) -> list[str]:
    """Return the failed checks; those that are about the mistake begin with its name."""
    about = MISTAKES[scenario.name].named_by if scenario.kind == BUG else frozenset()
    row = judged(scenario.script(), folder, steps=LISTENED)
    return [f"{'NAMED ' if f.check in about else ''}{f.check}: {f.detail}" for f in row.failed]
