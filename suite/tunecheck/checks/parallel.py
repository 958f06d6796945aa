"""Several processes that train together: replicas, shares of the rows, what each reports and writes."""

import math
from collections.abc import Iterator
from statistics import median, quantiles
from typing import Any

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


class ReplicasEqual(Check):
    """Every rank begins with the same weights, and has the same after every step, to the last bit."""

    premises = frozenset()
    across_ranks = True
    applies_to = frozenset({"parallel"})
    meaning = (
        "weights drawn anew in each process, a gradient that is not averaged (no_sync a pass too long, an unwrapped "
        "module), or a step that not every rank takes: the ranks train different models, and one of them is saved"
    )
    remedy = "let DDP broadcast the start; call the wrapped model; clip, skip and step by numbers that all ranks share"

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
                return self.unjudged(f"they differ after {steps} steps and are equal after {again[0]}", expected=True)
            if not steps and trace.run.objective and _exchange_something(first, replicas):
                reason = "they begin with other weights and exchange something in each step, as parts of one model do"
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


class RowsTrainedOnce(Check):
    """In each epoch no row is trained on twice, by whichever ranks, and all ranks take as many micro-batches."""

    across_ranks = True
    applies_to = frozenset({"parallel"})
    meaning = (
        "every rank reads the same shard or one that overlaps another's: an epoch takes as long as it should and holds "
        "a part of the rows, repeated"
    )
    remedy = "give each rank every so many rows, from its own number on: DistributedSampler does so"

    def judge(self, trace: Trace) -> Finding:
        by_rank = of_every_rank(trace, Window)
        if "watched" in trace.run.features:
            return self._of_loaders(trace, by_rank)
        windows = by_rank[0]
        problems = [*_uneven(trace, windows), *_twice(windows, trace.one(DataSplit).train_rows, trace.run.processes)]
        rows = sum(len(window.rows) for window in windows)
        detail = "; ".join(problems[:3]) or f"{rows} rows, each by one of {trace.run.processes} ranks"
        return self.found(not problems, detail, measured=len(problems), limit=0, compared=rows)

    def _of_loaders(self, trace: Trace, windows: dict[int, list[Window]]) -> Finding:
        """Judge processes that each saw their own rows alone, which a data set may hold several times."""
        rows = {rank: [row for window in held for row in window.rows] for rank, held in windows.items()}
        if alike := [rank for rank, own in rows.items() if rank and own == rows[0]]:
            detail = f"rank {alike[0]} was given the same {len(rows[0])} rows as rank 0, in the same order"
            return self.found(False, detail, measured=len(rows[0]), limit=0)
        size = trace.one(RowsGiven).dataset_rows
        if size is None or sum(map(len, rows.values())) > size:
            return self.unjudged("more rows than one epoch, or nobody knows how many it has", expected=True)
        if any(len(set(own)) < len(own) for own in rows.values()):
            return self.unjudged("rows come again within one process, which rows_come_once is about", expected=True)
        shared = {rank: len(set(own) & set(rows[0])) for rank, own in rows.items() if rank}
        rank = max(shared, key=shared.__getitem__)
        limit = int(len(rows[rank]) * SHARED_ROWS)
        detail = f"{shared[rank]} of {len(rows[rank])} rows of rank {rank} are rank 0's too"
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
                yield f"epoch {epoch}, step {number}: {row} by rank {rank}, before by rank {taken[epoch, row]}"
            taken[epoch, row] = rank


class RanksReportAlike(Check):
    """Loss, gradient norm, learning rate and evaluations are the same on every rank: those of all rows.

    A number of one rank's rows would differ from the next one's.
    """

    across_ranks = True
    applies_to = frozenset({"parallel"})
    meaning = "a loss or metric of one rank's rows alone is reported, or norm, rate or a skipped step is one rank's own"
    remedy = "sum losses and token counts over the ranks and divide once; take the norm after the average"

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


class DropoutDiffersByRank(Check):
    """Before every step the random state that dropout draws from is another one on each rank."""

    premises = frozenset({Premise.CAUSAL_LM, Premise.SEEDS_DIFFER_BY_RANK})
    across_ranks = True
    applies_to = frozenset({"parallel", "dropout"})
    meaning = (
        "every rank is seeded alike: all drop the same activations, so that their average is as noisy as one rank's"
    )
    remedy = "seed with the rank's number added, after the weights are made"

    def judge(self, trace: Trace) -> Finding:
        states: dict[tuple[int, str], int] = {}
        problems = []
        windows = of_every_rank(trace, Window)
        for rank, held in windows.items():
            for window in held:
                if (other := states.setdefault((window.step, window.random_state), rank)) != rank:
                    problems.append(f"step {window.step}: rank {rank} draws as rank {other} does")
        detail = "; ".join(problems[:3]) or f"{len(windows)} ranks draw apart in {len(windows[0])} steps"
        return self.found(not problems, detail, measured=len(problems), limit=0)


class SavedByOneRank(Check):
    """One rank writes what is saved, and saving returns on no rank before the files are there."""

    premises = frozenset({Premise.CAUSAL_LM, Premise.SAVES_HEARD_BY_RANK})
    across_ranks = True
    applies_to = frozenset({"parallel", "adapters"})
    meaning = (
        "several ranks write the same file at one time, or a rank goes on, and may read or upload, before it is whole"
    )
    remedy = "write on rank 0 alone, and call a barrier on every rank after that"

    def judge(self, trace: Trace) -> Finding:
        problems = []
        for rank, held in of_every_rank(trace, Saved).items():
            writers = held[-1].writers
            if len(writers) > 1:
                problems.append(f"ranks {', '.join(map(str, writers))} wrote")
            elif not writers:
                problems.append(f"when saving returned on rank {rank}, no rank had written a file")
        detail = "; ".join(dict.fromkeys(problems)) or "one rank wrote, and every rank found its files"
        return self.found(not problems, detail, measured=len(problems), limit=0)


class ShardsEven(Check):
    """Each rank holds its part of parameters, gradients and optimizer state, and no more."""

    across_ranks = True
    applies_to = frozenset({"sharded"})
    subject = "memory"
    meaning = (
        "a module that was never sharded, or whose parameters stay gathered after their pass: each rank holds it "
        "whole, and nobody reduces the gradient of one that FSDP does not know"
    )
    remedy = "call fully_shard on every layer and on the root, before the optimizer is made"

    def judge(self, trace: Trace) -> Finding:
        shards = [(rank, seen) for rank, held in of_every_rank(trace, Shard).items() for seen in held]
        if not any("optimizer state" in shard.held or shard.larger for _, shard in shards):
            raise MissingEvidence("no step was seen after the optimizer had its state")
        rank, worst = max(shards, key=lambda pair: (len(pair[1].larger), _excess(pair[1])))
        held, even = sum(worst.held.values()), sum(worst.even.values())
        larger = f"; more than its part of {some(worst.larger)}" if worst.larger else ""
        detail = f"rank {rank} holds {held:,} bytes in step {worst.step}, an even part is {even:,}{larger}"
        return self.found(not worst.larger, detail, measured=len(worst.larger), limit=0)


def _excess(shard: Shard) -> float:
    even = sum(shard.even.values())
    return sum(shard.held.values()) / even if even else math.inf


class RanksKeepPace(Check):
    """No rank computes far slower than the others, which would wait for it in every step."""

    across_ranks = True
    applies_to = frozenset({"parallel"})
    subject = "speed"
    meaning = (
        "a device that is throttled, shared or in another state than the others': the training is as slow as this one"
    )
    remedy = "look at clocks, temperature and other processes where this rank runs; leave it out"

    max_ratio: float = 3.0
    """Time per token of the forward passes over the median of the other ranks', exceeded in three steps of four. Far
    out on purpose: on two cores that other work kept busy two healthy ranks differed by up to 4 in single steps, and by
    1.2 in the median of 11."""
    late_seconds: float = 5.0
    """A rank that others waited for longer, before the training, is named."""

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
