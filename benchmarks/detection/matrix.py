"""The detection matrix: which check names which injected bug, in which tier, and whether a smoke test would fail."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.detection.bugs import Bug
from benchmarks.detection.ledger import Ledger, Row
from benchmarks.detection.trial import CONVERGENCE, QUICK, Setup, Trial, try_run
from tunecheck.core.errors import ConfigError

TEN_STEPS = "training.max_steps=10"
SHORT_CONVERGENCE = (
    "training.max_steps=20",
    "probes.resume_from=15",
    "probes.oracle_steps=[2]",
    *(f"checks.{check}=off" for check in ("loss_falls", "heldout_improves", "canary_learned")),
)
"""The tier's own probes on the tiny model, in as few steps as they need: too few to learn by heart."""
OWN = "its own settings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A run in which a bug may be detected."""

    name: str
    run: str
    settings: tuple[str, ...]


def stages(bug: Bug, *, real: bool) -> list[Stage]:
    """Return the runs in which the bug is looked for, the cheapest tier first.

    They are the tiers' runs; where these do not reach the buggy code (another strategy, dropout, more steps), a run
    with the bug's own settings.
    """
    quick, convergence = ((), ()) if real else ((TEN_STEPS,), SHORT_CONVERGENCE)
    if bug.cohort == "parallel":  # in the tiers' runs one process trains
        return [Stage(name=OWN, run=QUICK, settings=bug.settings_on(real=real))]
    found = [
        Stage(name="quick", run=QUICK, settings=quick),
        Stage(name="convergence", run=CONVERGENCE, settings=convergence),
    ]
    if bug.settings:  # before convergence, which costs four times as much, where its evidence is the quick run's
        found.insert(
            1 if real or bug.tier == "quick" else 2, Stage(name=OWN, run=QUICK, settings=bug.settings_on(real=real))
        )
    return found


def score(bug: Bug, setup: Setup) -> Row:
    """Return a row of the matrix: stage by stage until a check that names the bug fails."""
    tried: list[dict[str, Any]] = []
    named: tuple[str, ...] = ()
    for stage in stages(bug, real=setup.real):
        trial = try_run(stage.run, setup, stage.settings, bug)
        tried.append({"stage": stage.name, **_facts(trial)})
        if named := named_by(bug, trial):
            break
    return {
        "id": bug.id,
        "title": bug.title,
        "subject": bug.subject,
        "expected": list(bug.caught_by),
        "caught_in": tried[-1]["stage"] if named else None,
        "named_by": list(named),
        "smoke_test_failed": any(stage["smoke_test_failed"] for stage in tried),
        "crashed": any(stage["outcome"] != "finished" for stage in tried),
        "seconds": round(sum(stage["seconds"] for stage in tried), 1),
        "stages": tried,
    }


def named_by(bug: Bug, trial: Trial) -> tuple[str, ...]:
    """Return the failed checks that lead to the cause. A crash or a loss that does not fall is none of them."""
    return tuple(check for check in trial.failed if check in bug.caught_by)


def fill(
    ledger: Ledger, bugs: Mapping[str, Bug], ids: Collection[str], setup: Setup, *, say: Callable[[str], None]
) -> None:
    """Score these bugs, writing each row to the ledger as soon as it is known.

    Left out is what needs another trainer, which refuses the study's precision. Raises ConfigError where all are.
    """
    refused: dict[str, ConfigError] = {}
    for id in ids:
        try:
            row = score(bugs[id], setup)
        except ConfigError as error:
            refused[id] = error
            say(f"{id} {bugs[id].title}: left out: {error}")
            continue
        ledger.put(row)
        found = f"{row['caught_in']}: {', '.join(row['named_by'])}" if row["caught_in"] else "UNDETECTED"
        say(f"{id} {row['title']}: {found} ({row['seconds']:.0f} s)")
    if refused and len(refused) == len(ids):
        raise next(iter(refused.values()))
    ledger.save(bugs)


def _facts(trial: Trial) -> dict[str, Any]:
    return {
        "outcome": trial.outcome,
        "failed": list(trial.failed),
        "unjudged": list(trial.unjudged),
        "smoke_test_failed": trial.smoke_test_failed,
        "seconds": round(trial.seconds, 1),
    }
