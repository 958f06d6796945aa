"""Several processes that train together: replicas, shares of the rows, what each reports and writes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, ClassVar

from tunecheck.checks.attempts import of_every_rank
from tunecheck.core.check import Check, or_infinite, some
from tunecheck.core.errors import MissingEvidence
from tunecheck.core.evidence import (
    DataSplit,
    Evaluation,
    Joined,
    Pace,
    Replica,
    RowsGiven,
    Saved,
    Shard,
    Step,
    Window,
)
from tunecheck.core.finding import Finding
from tunecheck.core.premises import Premise
from tunecheck.core.trace import Trace

SHARED_ROWS = 0.5
"""Share of the rows of one process that another may have: a sampler fills the last round up with rows of the first."""
FEWEST_STEPS = 4
"""Steps from which a pace can be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasEqual(Check):
    """All ranks have the same weights at the start and after every step, to the last bit."""

    premises: ClassVar[frozenset[Premise]] = frozenset()
    across_ranks: ClassVar[bool] = True
    applies_to: ClassVar[frozenset[str]] = frozenset({"parallel"})
    meaning: ClassVar[str] = (
        "Each process draws its own weights. A gradient is not averaged, through a late no_sync or an unwrapped "
        "module. Some ranks skip a step. The ranks then train different models, and only one is saved."
    )
    remedy: ClassVar[str] = (
        "Let DDP broadcast the initial weights. Call the wrapped model. Clip, skip and step by numbers that all ranks "
        "share."
    )

    def judge(self, trace: Trace) -> Finding:
        replicas = {rank: {seen.steps: seen for seen in held} for rank, held in of_every_rank(trace, Replica).items()}
        first = replicas.pop(0)
        wanted = range(max(len(held) for held in of_every_rank(trace, Step).values()) + 1)
        lacking = [rank for rank, held in {0: first, **replicas}.items() if not held.keys() >= set(wanted)]
        different = [
            (steps, rank, first[steps], held[steps])
            for steps in wanted
            for rank, held in replicas.items()
            if steps in first and steps in held and held[steps].digest != first[steps].digest
        ]
        if different:
            steps, rank, one, other = different[0]
            again = [later for later in wanted if later > steps and _all_alike(later, first, replicas)]
            if again and "watched" in trace.run.features:  # local SGD: averaged every so many steps
                return self.unjudged(f"ranks differ after {steps} steps and are equal after {again[0]}", expected=True)
            if not steps and trace.run.objective and _exchange_something(first, replicas):
                reason = "ranks start with different weights and communicate in each step, like parts of one model"
                return self.unjudged(reason, expected=True)
            when = f"after {steps} steps" if steps else "before the first step"
            detail = f"{when} rank {rank} differs from rank 0{_tensors(one, other)}"
            return self.found(False, detail, measured=len(different), limit=0)
        if lacking:
            raise MissingEvidence(f"rank {lacking[0]} did not take every step")
        detail = f"{len(replicas) + 1} ranks equal before and after each of {len(first) - 1} steps"
        return self.found(True, detail, measured=0, limit=0, compared=len(replicas))


def _all_alike(steps: int, first: dict[int, Replica], others: dict[int, dict[int, Replica]]) -> bool:
    """Return whether all ranks have the same digest after so many steps."""
    digests = {held[steps].digest if steps in held else None for held in (first, *others.values())}
    return len(digests) == 1 and None not in digests


def _exchange_something(first: dict[int, Replica], others: dict[int, dict[int, Replica]]) -> bool:
    """Return whether any process exchanges anything with another in the steps, as far as that is counted."""
    counts = [[seen.exchanges for seen in held.values()] for held in (first, *others.values())]
    return any(None in held or len(set(held)) > 1 for held in counts)


def _tensors(one: Replica, other: Replica) -> str:
    """Return which tensors differ, at the end of a sentence; nothing where only their common digest is known."""
    names = [name for name, digest in one.tensors.items() if other.tensors.get(name) != digest]
    names += sorted(other.tensors.keys() - one.tensors.keys())
    return f" in {len(names)} of {len(one.tensors)} tensors: {some(names)}" if names else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsTrainedOnce(Check):
    """In each epoch every row is trained once across all ranks, and all ranks take equally many micro-batches."""

    across_ranks: ClassVar[bool] = True
    applies_to: ClassVar[frozenset[str]] = frozenset({"parallel"})
    meaning: ClassVar[str] = (
        "Ranks read the same shard, or overlapping ones. An epoch then takes its usual time but covers only part of "
        "the rows, repeatedly."
    )
    remedy: ClassVar[str] = "Give rank r every N-th row from row r on, as DistributedSampler does."

    def judge(self, trace: Trace) -> Finding:
        by_rank = of_every_rank(trace, Window)
        if "watched" in trace.run.features:
            return self._of_loaders(trace, by_rank)
        windows = by_rank[0]
        problems = [*_uneven(trace, windows), *_twice(windows, trace.one(DataSplit).train_rows, trace.run.processes)]
        rows = sum(len(window.rows) for window in windows)
        detail = "; ".join(problems[:3]) or f"{rows} rows, each on one of {trace.run.processes} ranks"
        return self.found(not problems, detail, measured=len(problems), limit=0, compared=rows)

    def _of_loaders(self, trace: Trace, windows: dict[int, list[Window]]) -> Finding:
        """Judge processes that each saw their own rows alone, which a data set may hold several times."""
        rows = {rank: [row for window in held for row in window.rows] for rank, held in windows.items()}
        if alike := [rank for rank, own in rows.items() if rank and own == rows[0]]:
            detail = f"rank {alike[0]} received the same {len(rows[0])} rows as rank 0, in the same order"
            return self.found(False, detail, measured=len(rows[0]), limit=0)
        size = trace.one(RowsGiven).dataset_rows
        if size is None or sum(map(len, rows.values())) > size:
            return self.unjudged("more rows than one epoch, or an epoch of unknown length", expected=True)
        if any(len(set(own)) < len(own) for own in rows.values()):
            return self.unjudged("rows recur within one process; rows_come_once judges that", expected=True)
        shared = {rank: len(set(own) & set(rows[0])) for rank, own in rows.items() if rank}
        rank = max(shared, key=shared.__getitem__)
        limit = int(len(rows[rank]) * SHARED_ROWS)
        detail = f"{shared[rank]} of {len(rows[rank])} rows of rank {rank} are also rank 0's"
        return self.found(shared[rank] <= limit, detail, measured=shared[rank], limit=limit)


def _uneven(trace: Trace, windows: list[Window]) -> Iterator[str]:
    """Yield the windows that hold another number of micro-batches than all ranks should take."""
    wanted = trace.run.training.gradient_accumulation_steps * trace.run.processes
    yield from (
        f"step {window.step}: {len(window.digests)} micro-batches, {wanted} configured"
        for window in windows
        if len(window.digests) != wanted
    )


def _twice(windows: list[Window], train_rows: int, processes: int) -> Iterator[str]:
    """Yield the rows that come a second time in an epoch, with the ranks that took them; before the first gap."""
    taken: dict[tuple[int, str], int] = {}
    count = 0
    for number, window in enumerate(windows):
        if window.step != number:
            return
        width = max(1, len(window.rows) // max(1, len(window.digests)))
        for place, row in enumerate(window.rows):
            if row in ("canary", "?"):
                continue
            epoch, rank = count // max(1, train_rows), place // width % processes
            count += 1
            if (epoch, row) in taken:
                yield f"epoch {epoch}, step {number}: {row} on rank {rank}, earlier on rank {taken[epoch, row]}"
            taken[epoch, row] = rank


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksReportAlike(Check):
    """Every rank reports the same loss, gradient norm, learning rate and evaluations, computed over all rows."""

    across_ranks: ClassVar[bool] = True
    applies_to: ClassVar[frozenset[str]] = frozenset({"parallel"})
    meaning: ClassVar[str] = (
        "A rank reports the loss or metric of its own rows. Or the norm, the rate or a skipped step belongs to one "
        "rank."
    )
    remedy: ClassVar[str] = (
        "Sum losses and token counts over the ranks, and divide once. Compute the norm after averaging gradients."
    )

    def judge(self, trace: Trace) -> Finding:
        names = SHARED_NUMBERS if "watched" in trace.run.features else NUMBERS
        numbers = {rank: [_of_step(step, names) for step in held] for rank, held in of_every_rank(trace, Step).items()}
        if "watched" not in trace.run.features and trace.run.evaluation.splits:
            for rank, held in of_every_rank(trace, Evaluation).items():
                numbers[rank] += [_of_evaluation(seen) for seen in held]
        first = numbers.pop(0)
        problems = [
            f"{when}: {name} {_shown(mine.get(name))} on rank {rank}, {_shown(value)} on rank 0"
            for rank, held in numbers.items()
            for (when, wanted), (_, mine) in zip(first, held, strict=False)
            for name, value in wanted.items()
            if repr(mine.get(name)) != repr(value)
        ]
        if not problems and any(len(held) != len(first) for held in numbers.values()):
            raise MissingEvidence("not every rank reported every step and evaluation")
        detail = "; ".join(problems[:3]) or f"{len(first)} reports, equal on {len(numbers) + 1} ranks"
        return self.found(not problems, detail, measured=len(problems), limit=0)


Numbers = tuple[str, dict[str, Any]]


SHARED_NUMBERS = ("gradient_norm", "learning_rate", "applied")
"""Of a step, what every process of a training has alike."""
NUMBERS = ("loss", *SHARED_NUMBERS, "supervised_tokens", "tokens")
"""The same where each sums up the rows of all."""


def _of_step(step: Step, names: tuple[str, ...]) -> Numbers:
    return f"step {step.step}", {name: getattr(step, name) for name in names}


def _of_evaluation(seen: Evaluation) -> Numbers:
    return f"{seen.split} before step {seen.step}", {"loss": seen.loss, "tokens": seen.tokens}


def _shown(value: Any) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropoutDiffersByRank(Check):
    """Before every step, each rank's dropout has a different random state."""

    premises: ClassVar[frozenset[Premise]] = frozenset({Premise.CAUSAL_LM, Premise.SEEDS_DIFFER_BY_RANK})
    across_ranks: ClassVar[bool] = True
    applies_to: ClassVar[frozenset[str]] = frozenset({"parallel", "dropout"})
    meaning: ClassVar[str] = (
        "All ranks have the same seed. All drop the same activations, so that their average is as noisy as one rank's."
    )
    remedy: ClassVar[str] = "Add the rank to the seed, after creating the weights."

    def judge(self, trace: Trace) -> Finding:
        states: dict[tuple[int, str], int] = {}
        problems = []
        windows = of_every_rank(trace, Window)
        for rank, held in windows.items():
            for window in held:
                if (other := states.setdefault((window.step, window.random_state), rank)) != rank:
                    problems.append(f"step {window.step}: rank {rank} has the random state of rank {other}")
        detail = "; ".join(problems[:3]) or f"{len(windows)} ranks draw differently in {len(windows[0])} steps"
        return self.found(not problems, detail, measured=len(problems), limit=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedByOneRank(Check):
    """One rank writes each file, and saving returns on every rank only after the files exist."""

    premises: ClassVar[frozenset[Premise]] = frozenset({Premise.CAUSAL_LM, Premise.SAVES_HEARD_BY_RANK})
    across_ranks: ClassVar[bool] = True
    applies_to: ClassVar[frozenset[str]] = frozenset({"parallel", "adapters"})
    meaning: ClassVar[str] = (
        "Several ranks write the same file at once. Or a rank continues, and may read or upload the file before it is "
        "complete."
    )
    remedy: ClassVar[str] = "Write on rank 0 only, then call a barrier on every rank."

    def judge(self, trace: Trace) -> Finding:
        problems = []
        for rank, held in of_every_rank(trace, Saved).items():
            writers = held[-1].writers
            if len(writers) > 1:
                problems.append(f"ranks {', '.join(map(str, writers))} wrote")
            elif not writers:
                problems.append(f"saving returned on rank {rank} before any rank had written a file")
        detail = "; ".join(dict.fromkeys(problems)) or "one rank wrote the files, and every rank found them"
        return self.found(not problems, detail, measured=len(problems), limit=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardsEven(Check):
    """Each rank holds only its own shard of parameters, gradients and optimizer state."""

    across_ranks: ClassVar[bool] = True
    applies_to: ClassVar[frozenset[str]] = frozenset({"sharded"})
    subject: ClassVar[str] = "memory"
    meaning: ClassVar[str] = (
        "A module was never sharded, or its parameters stay gathered after their pass. Each rank then holds it in "
        "full. FSDP does not reduce the gradients of a module that it does not wrap."
    )
    remedy: ClassVar[str] = "Call fully_shard on every layer and on the root, before creating the optimizer."

    def judge(self, trace: Trace) -> Finding:
        shards = [(rank, seen) for rank, held in of_every_rank(trace, Shard).items() for seen in held]
        if not any("optimizer state" in shard.held or shard.larger for _, shard in shards):
            raise MissingEvidence("no step was recorded with an optimizer state")
        rank, worst = max(shards, key=lambda pair: (len(pair[1].larger), _excess(pair[1])))
        held, even = sum(worst.held.values()), sum(worst.even.values())
        larger = f"; more than its shard of {some(worst.larger)}" if worst.larger else ""
        detail = f"rank {rank} holds {held:,} bytes in step {worst.step}, an even shard has {even:,}{larger}"
        return self.found(not worst.larger, detail, measured=len(worst.larger), limit=0)


def _excess(shard: Shard) -> float:
    even = sum(shard.even.values())
    return sum(shard.held.values()) / even if even else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksKeepPace(Check):
    """All ranks compute at a similar speed."""

    across_ranks: ClassVar[bool] = True
    applies_to: ClassVar[frozenset[str]] = frozenset({"parallel"})
    subject: ClassVar[str] = "speed"
    meaning: ClassVar[str] = "One device is throttled, shared, or in another power state. Every step waits for it."
    remedy: ClassVar[str] = (
        "Compare clocks, temperature and other processes of this rank's device with the others. Remove the device from "
        "the job."
    )

    max_ratio: float = 3.0
    """Time per token of the forward passes over the median of the other ranks, exceeded in three steps of four. The
    limit is generous. On two busy cores, two healthy ranks differed by up to 4 in single steps, and by 1.2 in the
    median of 11."""
    late_seconds: float = 5.0
    """Seconds that other ranks waited for this one before the training. The finding names a slower rank."""

    def judge(self, trace: Trace) -> Finding:
        late = self._late(trace)
        paces = {
            rank: {seen.step: seen.seconds / seen.tokens for seen in held if seen.step > 0}
            for rank, held in of_every_rank(trace, Pace).items()
        }
        steps = sorted(set.intersection(*(set(held) for held in paces.values())))
        if len(steps) < FEWEST_STEPS:
            reason = f"{len(steps)} steps after the first, {FEWEST_STEPS} are needed{late}"
            return self.unjudged(reason, expected=True)
        ratios = {rank: [_beside_others(paces, rank, step) for step in steps] for rank in paces}
        slowest = max(ratios, key=lambda rank: or_infinite(median(ratios[rank])))
        ratio, often = median(ratios[slowest]), quantiles(ratios[slowest], n=4)[0]
        detail = f"rank {slowest} is the slowest: {ratio:.2f} times the time per token of the others{late}"
        return self.found(often <= self.max_ratio, detail, measured=often, limit=self.max_ratio)

    def _late(self, trace: Trace) -> str:
        """Return which rank joined late, as a clause; empty where none did."""
        waited = {rank: held[-1].waited_seconds for rank, held in of_every_rank(trace, Joined).items()}
        last = min(waited, key=waited.__getitem__)
        late = max(waited.values()) - waited[last]
        return f"; rank {last} started {late:.0f} s after the first" if late > self.late_seconds else ""


def _beside_others(paces: dict[int, dict[int, float]], rank: int, step: int) -> float:
    """Return this rank's time per token in a step over the median of the others'; NaN where that is none."""
    others = median(held[step] for other, held in paces.items() if other != rank)
    return paces[rank][step] / others if others else math.nan
