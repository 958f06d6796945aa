"""Trainers side by side: the same training by each of them, several times in turns.

Rates and peaks are medians over the turns. Ratios are taken within a turn, between trainings that follow each other on
the same machine, so that what slows the whole machine for a while cancels.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import median
from typing import Any, ClassVar

from tunecheck.core.evidence import AttemptOutcome
from tunecheck.core.frozen import Frozen
from tunecheck.core.text import human_bytes
from tunecheck.results import RunReport
from tunecheck.results.comparison import grouped
from tunecheck.results.words import too_busy


class Contender(Frozen):
    """What one trainer's turns come to; None where they did not come so far."""

    trainer: str
    verdict: str
    """The worst outcome of its turns."""
    failed: tuple[str, ...]
    """Checks that failed in any of them."""
    turns: int
    tokens_per_second: float | None
    """Median over the turns of a turn's median step."""
    rate_ratio: float | None
    """To the first trainer's in the same turn, median over the turns."""
    peak_bytes: int | None
    """Median over the turns."""
    peak_kind: str
    peak_ratio: float | None
    loss_difference: float | None
    """Largest difference of any step's loss from that of the first trainer's first turn, relative to it; of turns that
    trained to their end."""
    repeats: bool
    """Whether the losses of all its turns are equal to the last bit."""


@dataclass(frozen=True)
class Benchmark:
    """The runs of one benchmark."""

    name: str
    model: str
    runs_of_turns: tuple[RunReport, ...]
    heads: ClassVar = ("trainer", "verdict", "tokens/s", "ratio", "peak", "ratio", "loss differs by", "turns")
    """The headings of its rows."""
    named_by: ClassVar = "trainer"
    """What the names of its entries are."""

    @property
    def title(self) -> str:
        """What was trained."""
        return f"trainers of {self.name} on {self.model}"

    @property
    def ranking(self) -> str:
        """How the numbers were made."""
        return f"medians over the turns; ratios and losses against {self.contenders[0].trainer}, within a turn"

    @property
    def runs(self) -> tuple[RunReport, ...]:
        """Each trainer's first turn."""
        return tuple(runs[0] for runs in self._by_trainer.values())

    @cached_property
    def contenders(self) -> tuple[Contender, ...]:
        """Every trainer, in the order of the first turn."""
        first = next(iter(self._by_trainer.values()))
        return tuple(_contender(trainer, runs, first) for trainer, runs in self._by_trainer.items())

    @cached_property
    def _by_trainer(self) -> dict[str, list[RunReport]]:
        held: dict[str, list[RunReport]] = {}
        for run in sorted(self.runs_of_turns, key=_turn):  # stable: in a turn the order in which they began
            assert run.entry is not None
            held.setdefault(run.entry.name, []).append(run)
        return held

    def rows(self) -> list[tuple[str, ...]]:
        """Return the cells below `heads`."""
        return [_cells(contender) for contender in self.contenders]

    def notes(self) -> list[str]:
        """Return a sentence for each trainer whose numbers need one, and one where the machine was not its own."""
        sentences = [f"{one.trainer}: failed {', '.join(one.failed)}" for one in self.contenders if one.failed]
        sentences += [
            f"{one.trainer}: its losses are not the same in every turn, so that none of them can be repeated"
            for one in self.contenders
            if not one.repeats
        ]
        if busy := [run.others_busy_share or 0.0 for run in self.runs_of_turns if too_busy(run)]:
            sentences.append(f"other processes used up to {max(busy):.0%} of the CPU time: believe no speed of these")
        return sentences

    def to_json(self) -> dict[str, Any]:
        """Return the benchmark as plain data."""
        return {"name": self.name, "model": self.model, "trainers": [asdict(one) for one in self.contenders]}


def benchmarks(runs: Iterable[RunReport]) -> list[Benchmark]:
    """Return each benchmark of which at least one turn trained, in the order of the report."""
    turns = grouped(run for run in runs if run.entry and run.entry.turn)
    return [Benchmark(*key, tuple(group)) for key, group in turns]


def _contender(trainer: str, runs: Sequence[RunReport], first: Sequence[RunReport]) -> Contender:
    whole = _whole(runs)
    reference = next((run.losses for run in _whole(first)), None)
    against = {_turn(run): run for run in first}
    pairs = [(run, against[_turn(run)]) for run in runs if _turn(run) in against]
    return Contender(
        trainer=trainer,
        verdict=min((run.outcome for run in runs), key=WORST.index),
        failed=tuple(dict.fromkeys(finding.check for run in runs for finding in run.failed)),
        turns=len(runs),
        tokens_per_second=_median([run.tokens_per_second for run in runs]),
        rate_ratio=_median([_ratio(run.tokens_per_second, other.tokens_per_second) for run, other in pairs]),
        peak_bytes=None if (peak := _median([run.peak_bytes for run in runs])) is None else int(peak),
        peak_kind=next((run.peak_kind for run in runs if run.peak_kind), ""),
        peak_ratio=_median([_ratio(run.peak_bytes, other.peak_bytes) for run, other in pairs]),
        loss_difference=max((_difference(run.losses, reference) for run in whole if reference), default=None),
        repeats=len({run.losses for run in whole}) <= 1,
    )


WORST = ("fail", "error", "inconclusive", "skipped", "pass")
"""Outcomes, the worst first."""


def _whole(runs: Iterable[RunReport]) -> list[RunReport]:
    """Return the turns that trained to their end."""
    ended = (run for run in runs if all(tried.outcome == AttemptOutcome.FINISHED for tried in run.trainings[-1:]))
    return [run for run in ended if run.losses]


def _difference(losses: Sequence[float], others: Sequence[float]) -> float:
    """Return the largest relative difference of two trainings' losses; infinite where one ended before the other."""
    if len(losses) != len(others):
        return math.inf
    differences = [
        abs(one - other) / abs(other) if other else math.inf for one, other in zip(losses, others, strict=True)
    ]
    return math.inf if any(map(math.isnan, differences)) else max(differences)


def _turn(run: RunReport) -> int:
    return run.entry.turn if run.entry else 0


def _ratio(value: float | None, other: float | None) -> float | None:
    return None if value is None or not other else value / other


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _cells(one: Contender) -> tuple[str, ...]:
    return (
        one.trainer,
        one.verdict,
        _number(one.tokens_per_second, ".4g"),
        _number(one.rate_ratio, ".3f"),
        "" if one.peak_bytes is None else f"{human_bytes(one.peak_bytes)} {one.peak_kind}",
        _number(one.peak_ratio, ".3f"),
        _number(one.loss_difference, ".1e"),
        str(one.turns),
    )


def _number(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"
