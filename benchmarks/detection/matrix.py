"""The kill matrix: which check names which fault, in which tier, and what the naive test would have made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.detection.bugs import Fault
from benchmarks.detection.bugs.command import TINY
from benchmarks.detection.ledger import Ledger
from benchmarks.detection.trial import CONVERGENCE, QUICK, Trial, try_run

TEN_STEPS = "training.max_steps=10"
SHORT_CONVERGENCE = ("training.max_steps=20", "probes.resume_from=15", "probes.oracle_steps=[2]")
"""The tier's own probes on the tiny model, in as few steps as they need."""
OWN = "its own settings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A place where a fault may be caught."""

    name: str
    run: str
    settings: tuple[str, ...]


def stages(fault: Fault, *, real: bool) -> list[Stage]:
    """Where this fault is looked for, the cheapest tier first.

    The tiers' runs as they are; where a fault's code is not reached by them (another strategy, dropout, more steps), a
    run that asks for what it needs.
    """
    tiny, convergence = ((), ()) if real else ((*TINY, TEN_STEPS), (*TINY, *SHORT_CONVERGENCE))
    tried = [
        Stage(name="quick", run=QUICK, settings=tiny),
        Stage(name="convergence", run=CONVERGENCE, settings=convergence),
    ]
    if fault.settings:  # on real weights before the hundred steps of convergence: a minute, not four
        own = Stage(name=OWN, run=QUICK, settings=(*(() if real else TINY), *fault.settings_on(real=real)))
        tried.insert(1 if real else 2, own)
    return tried


def score(fault: Fault, *, real: bool) -> dict[str, Any]:
    """A row of the matrix: stage by stage until a check that names the fault's domain fails."""
    tried: list[dict[str, Any]] = []
    for stage in stages(fault, real=real):
        trial = try_run(stage.run, stage.settings, fault)
        tried.append({"stage": stage.name, **_facts(trial)})
        if named_by(fault, trial):
            return _row(fault, tried, caught_in=stage.name, named_by=list(named_by(fault, trial)))
    return _row(fault, tried, caught_in=None, named_by=[])


def named_by(fault: Fault, trial: Trial) -> tuple[str, ...]:
    """The failed checks that would lead a person to the cause. A crash or a loss that does not fall is none of them."""
    return tuple(check for check in trial.failed if check in fault.caught_by)


def fill(
    ledger: Ledger, faults: Mapping[str, Fault], numbers: Iterable[str], *, real: bool, say: Callable[[str], None]
) -> None:
    """Each of these faults has its row in the ledger, written as soon as it is known."""
    for number in numbers:
        row = score(faults[number], real=real)
        ledger.put(row)
        found = f"{row['caught_in']}: {', '.join(row['named_by'])}" if row["caught_in"] else "SURVIVES"
        say(f"{number} {row['title']}: {found} ({row['seconds']:.0f} s)")
    ledger.save(faults)


def _facts(trial: Trial) -> dict[str, Any]:
    facts = asdict(trial)
    del facts["numbers"]
    return {**facts, "seconds": round(trial.seconds, 1)}


def _row(fault: Fault, tried: list[dict[str, Any]], **found: Any) -> dict[str, Any]:
    return {
        "id": fault.id,
        "title": fault.title,
        "class": fault.kind,
        "expected": list(fault.caught_by),
        **found,
        "naive": any(stage["naive_alarm"] for stage in tried),
        "crashed": any(stage["outcome"] not in ("finished",) for stage in tried),
        "seconds": round(sum(stage["seconds"] for stage in tried), 1),
        "stages": tried,
    }
