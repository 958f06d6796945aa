"""The corpus of kept traces is judged as it stands written. No training: its traces are of CPUs in fp32 and bf16."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks.scripts.corpus import STANDING, Judgement, Kept, differences, replayed, summary

ONE = Kept("bugs", "a mistake", ("loss_oracle",))
FOUND = Judgement("fail", ("loss_oracle",), ())


@pytest.fixture(scope="module")
def now():
    """Every trace judged again."""
    return replayed()


def test_every_judgement_is_the_standing_one(now):
    """Whoever changes one writes it anew, and sees what else changed: `replay --write`."""
    assert differences(now, json.loads(STANDING.read_text(encoding="utf-8"))) == []


def test_no_healthy_script_is_flagged_and_every_mistake_is_named(now):
    """What cannot be judged is said of a training whose whole gradient never is."""
    told = summary(now)
    assert "flagged 0, inconclusive 1," in told
    mistakes = sum(kept.kind == "bugs" for kept in now)
    assert f"mistakes: {mistakes}, named {mistakes}," in told


def test_a_difference_is_told_by_script():
    """Both judgements, or that one is missing."""
    standing = {ONE.file: {"outcome": "pass", "failed": [], "suspected": ["rows_whole"]}, "gone.jsonl": {}}
    assert differences({ONE: FOUND}, standing) == [
        "bugs a mistake: pass; suspected rows_whole -> fail; failed loss_oracle",
        "no longer there: gone.jsonl",
    ]
    assert differences({ONE: FOUND}, {}) == ["bugs a mistake: none -> fail; failed loss_oracle"]


def test_the_summary_counts_what_is_flagged_and_missed():
    """A suspicion names a mistake, too."""
    healthy = Kept("healthy", "a script")
    asked = Judgement("pass", (), ("rows_whole",))
    told = summary({ONE: asked, replace(ONE, name="another"): FOUND, healthy: FOUND})
    assert "healthy: 1, flagged 1, inconclusive 0, suspicions 0 (0.00 a script)" in told
    assert "mistakes: 2, named 1, of them failed 1" in told
    assert "flagged 1 healthy by loss_oracle" in told
