"""Several processes that train together: replicas, shares of the rows, what each reports and writes."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median, quantiles
from typing import Any

from tunecheck.core import evidence
from tunecheck.core.check import Check, enough, or_infinite, recorded, required, some
from tunecheck.core.errors import MissingEvidence, NotApplicable
from tunecheck.core.finding import Finding
from tunecheck.core.premises import Premise
from tunecheck.core.row_spans import ROWS_OF_AN_ORDER
from tunecheck.core.trace import Trace

MOST_SHARED = 9
"""Rows of one process that another may have, while none comes again within a process: of ten equal pairs in the data
all are between two processes once in 1024 times."""
PARTS = "processes that hold parts of one model are given the same rows"
UNEVEN = "batches of as many tokens may be filled by other numbers of rows on each rank"
SOME_COLUMNS = "a column may be drawn at random on each rank"
BY_STEPS = "a training that is counted in steps, not epochs, may draw rows by each rank's own seed"
REPEATED_IN_DATA = "the data set may hold rows twice, next to each other"
FEWEST_STEPS = 4
"""Steps from which a pace can be told."""


class ReplicasEqual(Check):
    """All ranks have the same weights at the start and after every step, to the last bit."""

    needs = frozenset({"parallel"})
    across_ranks = True
    meaning = """Each process draws its own weights. A gradient is not averaged, through a late no_sync or an unwrapped
    module. Some ranks skip a step. The ranks then train different models, and only one is saved."""
    remedy = "Let DDP broadcast the weights. Call the wrapped model. Clip, skip and step by numbers that ranks share."

    def judge(self, trace: Trace) -> Finding:
        counts = [len(trace.of_rank(rank).records(evidence.Step)) for rank in trace.ranks]
        if not (trace.holds(Premise.AVERAGED_EACH_STEP) or all(counts)) and any(counts):
            detail = f"rank {counts.index(0)} took no step of the optimizer, another {max(counts)}"
            return self.found(False, detail, measured=0, limit=max(counts))
        of_ranks = trace.of_every_rank(evidence.Replica)
        replicas = {rank: {seen.steps: seen for seen in held} for rank, held in of_ranks.items()}
        first = replicas[0]
        wanted = range(max(len(held) for held in trace.of_every_rank(evidence.Step).values()) + 1)
        if different := [
            (steps, rank, first[steps], held[steps])
            for steps in wanted
            for rank, held in replicas.items()
            if steps in first and steps in held and held[steps].digest != first[steps].digest
        ]:
            steps, rank, one, other = different[0]
            required(not (why := trace.averaged_at_times), why)
            # as far as what a process exchanges with others is counted
            exchanged = [{seen.exchanges for seen in held.values()} for held in replicas.values()]
            communicate = any(None in exchanges or len(exchanges) > 1 for exchanges in exchanged)
            like_parts = "ranks start with different weights and communicate in each step, like parts of one model"
            required(not communicate or steps or one.wrapped or trace.holds(Premise.CAUSAL_LM), like_parts)
            when = f"after {steps} steps" if steps else "before the first step"
            names = [name for name, digest in one.tensors.items() if other.tensors.get(name) != digest]
            names += sorted(other.tensors.keys() - one.tensors.keys())
            where = f" in {len(names)} of {len(one.tensors)} tensors: {some(names)}" if names else ""
            return self.at_most(len(different), 0, f"{when} rank {rank} differs from rank 0{where}")
        if lacking := [rank for rank, held in replicas.items() if not held.keys() >= set(wanted)]:
            raise MissingEvidence(f"rank {lacking[0]} did not take every step")
        detail = f"{len(replicas)} ranks equal before and after each of {len(first) - 1} steps"
        return self.unless((), detail, compared=len(replicas) - 1)


class RowsTrainedOnce(Check):
    """In each epoch every row is trained once across all ranks, and all ranks take equally many micro-batches."""

    needs = frozenset({"parallel"})
    across_ranks = True
    meaning = "Ranks read the same shard, or overlapping ones. An epoch then covers a part of the rows repeatedly."
    remedy = "Give rank r every N-th row from row r on, as DistributedSampler does."

    def judge(self, trace: Trace) -> Finding:
        if not trace.holds(Premise.EVERY_ROW_SEEN):
            return self._of_loaders(trace)
        windows = trace.of_every_rank(evidence.Window)[0]
        wanted = trace.run.training.gradient_accumulation_steps * trace.run.processes
        taken = [(window.step, len(window.digests)) for window in windows]
        problems = [f"step {at}: {count} micro-batches, {wanted} configured" for at, count in taken if count != wanted]
        problems += _twice(windows, trace.one(evidence.DataSplit).train_rows, trace.run.processes)
        rows = sum(len(window.rows) for window in windows)
        return self.unless(problems, f"{rows} rows, each on one of {trace.run.processes} ranks", most=3, compared=rows)

    def _of_loaders(self, trace: Trace) -> Finding:
        """Judge processes that each saw their own rows alone."""
        causal = trace.holds(Premise.CAUSAL_LM)
        if not causal and trace.holds(Premise.STEP_DECLARED):  # as GRPO's, whose ranks complete the same prompts
            raise NotApplicable("a Trainer of another objective may give several ranks the same rows")
        given = {rank: _given(trace.of_rank(rank)) for rank in trace.ranks}
        recorded(len(given) >= trace.run.processes, f"rank {len(given)} left no evidence")
        streams = {rank: [row for _, rows in held for row in rows] for rank, held in given.items()}
        # what differs may lie in there
        opaque = not causal and any(seen.opaque for seen in trace.all(evidence.StepInputs))
        alike = [rank for rank, own in streams.items() if rank and own == streams[0] and len(set(own)) > 1]
        if alike and not opaque:
            kind = "rows" if causal else "batches"
            detail = f"rank {alike[0]} was given the same {len(streams[0])} {kind} as rank 0, in the same order"
            wrapped = causal or any(seen.wrapped for seen in trace.records(evidence.Replica))
            return self.at_most(len(streams[0]), 0, detail, meant="" if wrapped else PARTS)
        counts = {rank: [len(micro_batches) for micro_batches, _ in held] for rank, held in given.items()}
        for rank, own in counts.items():
            if uneven := [at for at, (a, b) in enumerate(zip(counts[0], own, strict=False)) if a != b]:
                detail = f"step {uneven[0]}: {own[uneven[0]]} micro-batches on rank {rank}, "
                detail += f"{counts[0][uneven[0]]} on rank 0"
                return self.at_most(len(uneven), 0, detail, meant=UNEVEN)
        drawn = [seen[-1] for rank in trace.ranks if (seen := trace.of_rank(rank).records(evidence.RowsDrawn))]
        known = len(drawn) == len(given) and all(seen.dataset_rows and seen.passes and seen.passes[0] for seen in drawn)
        if known and (found := self._by_numbers(drawn)) is not None:
            return found
        shared = {rank: len({*own} & {*streams[0]}) for rank, own in streams.items() if rank}
        rank = max(shared, key=shared.__getitem__)
        kind = "rows" if causal else "micro-batches"
        detail = f"{shared[rank]} of {len(streams[rank])} {kind} of rank {rank} are rank 0's too"
        if not causal:  # where ranks share a seed, one may draw numbers for something else, too
            told = shared[rank] > 1 and not opaque
            required(told, "no loader shares out the numbers of rows that every process holds")
            return self.at_most(shared[rank], 1, detail, meant=REPEATED_IN_DATA)
        size = trace.one(evidence.RowsGiven).dataset_rows
        within_epoch = size is not None and sum(map(len, streams.values())) <= size
        # of equal rows of a data set, and of two epochs, about half come within one process
        apart = all(len(set(own)) == len(own) for own in streams.values())
        apart = apart and (within_epoch or shared[rank] > MOST_SHARED)
        required(apart, "rows come again within one process, or nobody knows how many there are")
        # within an epoch, where the data set may hold rows several times
        half = len(streams[rank]) // 2 if within_epoch else math.inf
        meant = "" if shared[rank] > half else REPEATED_IN_DATA
        return self.at_most(shared[rank], min(MOST_SHARED, half), detail, meant=meant)

    def _by_numbers(self, drawn: Sequence[evidence.RowsDrawn]) -> Finding | None:
        """Judge loaders of one data set by the numbers that they draw; None where each has a data set of its own."""
        sizes, first = [seen.dataset_rows for seen in drawn], [seen.passes[0] for seen in drawn]
        if (uneven := max(sizes) - min(sizes)) > 1:
            detail = f"the ranks' data sets have {some([f'{size:,}' for size in sizes])} rows"
            return self.at_most(uneven, 1, detail, meant="each rank may be given a part of its own size")
        size, filled = sizes[0], sum(seen.batch for seen in drawn)  # samplers fill the last batches with the first rows
        columns = [set(seen.columns) for seen in drawn]
        if uneven or not all(columns) or any(len(set(own)) < len(own) - filled for own in first):
            return None
        total = sum(map(len, first))
        shared = sum(len(set(own)) for own in first) - len(set().union(*first))
        allowed = min(max(0, total - size), filled)
        shares_out = sum(seen.batches * seen.batch for seen in drawn) <= size + 2 * filled
        if any(own != columns[0] for own in columns):
            if not shares_out or shared > allowed:
                return None
            detail = f"the loaders share out the numbers of {size:,} rows, and each rank's data set holds others"
            meant = SOME_COLUMNS if set.intersection(*columns) or drawn[0].tokens_alone else ""
            return self.found(False, detail, measured=len(drawn), limit=1, meant=meant)
        if shared <= allowed and not shares_out:
            each = drawn[0].batches * drawn[0].batch
            detail = f"each of {len(drawn)} ranks draws {each:,} of {size:,} rows in a pass over the same data set"
            return self.found(False, detail, measured=each, limit=size // len(drawn), meant=BY_STEPS)
        detail = f"{shared} of {total} rows of the first pass are drawn by two ranks, from a data set of {size:,}"
        return self.at_most(shared, allowed, detail)


def _given(trace: Trace) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the micro-batches and rows of each step of one rank; where rows are not known, micro-batches twice."""
    if trace.holds(Premise.CAUSAL_LM):
        return [(seen.digests, seen.rows) for seen in trace.all(evidence.Window)]
    return [(seen.digests, seen.digests) for seen in trace.all(evidence.StepInputs)]


def _twice(windows: list[evidence.Window], train_rows: int, processes: int) -> Iterator[str]:
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


class RanksReportAlike(Check):
    """Every rank reports the same loss, gradient norm, learning rate and evaluations, computed over all rows."""

    needs = frozenset({"parallel"})
    across_ranks = True
    meaning = "A rank reports the loss or metric of its own rows, or a norm, a rate or a skipped step of its own."
    remedy = "Sum losses and token counts over the ranks, and divide once. Compute the norm after averaging gradients."

    def judge(self, trace: Trace) -> Finding:
        of_all = trace.holds(Premise.EVERY_ROW_SEEN)
        models = {} if trace.holds(Premise.CAUSAL_LM) else trace.of_every_rank(evidence.Replica)
        if len({tuple(seen.digest for seen in held) for held in models.values()}) > 1:
            raise NotApplicable("the ranks' models differ: parts of one have numbers of their own")
        required(not (why := trace.averaged_at_times), why)
        numbers: dict[int, list[tuple[str, dict[str, Any]]]] = {}
        for rank, steps in trace.of_every_rank(evidence.Step).items():
            told = [{name: getattr(step, name) for name in (NUMBERS if of_all else SHARED_NUMBERS)} for step in steps]
            if not of_all:
                clips = {seen.step: seen.clip_scale for seen in trace.of_rank(rank).records(evidence.CallOrder)}
                told = [{**own, "share left by clipping": clips.get(at)} for at, own in enumerate(told)]
            numbers[rank] = [(f"step {step.step}", own) for step, own in zip(steps, told, strict=True)]
        if of_all and trace.run.evaluated:
            for rank, held in trace.of_every_rank(evidence.Evaluation).items():
                losses = [(f"{e.split} before step {e.step}", {"loss": e.loss, "tokens": e.tokens}) for e in held]
                numbers[rank] += losses
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
        return self.unless(problems, f"{len(first)} reports, equal on {len(numbers) + 1} ranks", most=3)


SHARED_NUMBERS = ("gradient_norm", "learning_rate", "applied")
"""Of a step, what every process of a training has alike."""
NUMBERS = ("loss", *SHARED_NUMBERS, "supervised_tokens", "tokens")
"""The same where each sums up the rows of all."""


def _shown(value: Any) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


class EpochsShuffled(Check):
    """A loader that shuffles draws its rows in a new order in each epoch."""

    needs = frozenset({"user_code"})
    across_ranks = True
    convention = "some people keep one order to compare epochs"
    meaning = """Nobody calls sampler.set_epoch. DistributedSampler shuffles by seed and epoch, so every epoch has the
    same batches. Or a seed or a generator is set again in each epoch."""
    remedy = "Call loader.sampler.set_epoch(epoch) at the start of each epoch. Set seeds once, before the first epoch."

    def judge(self, trace: Trace) -> Finding:
        ranks = [trace.of_rank(rank) for rank in trace.of_every_rank(evidence.Step)]
        last = [seen for rank in ranks for seen in rank.records(evidence.RowsDrawn)[-1:]]
        # a pass that is left early may be a look at some rows before the first epoch
        pairs = [(a[: len(b)], b) for seen in last for a, b in pairwise(seen.passes) if len(a) >= len(b)]
        pairs = [(a, b) for a, b in pairs if len(a) >= ROWS_OF_AN_ORDER and list(a) != sorted(a)]
        pairs = required(pairs, "no loader that shuffles was seen to begin a second pass")
        alike = sum(one == other for one, other in pairs)
        detail = f"{alike} of {len(pairs)} passes of all ranks draw the rows in the order of the pass before"
        return self.at_most(alike, 0, detail)


class DropoutDiffersByRank(Check):
    """Before every step, each rank's dropout has a different random state.

    transformers and accelerate seed all processes alike by default, so other trainings are not judged.
    """

    across_ranks = True
    needs = frozenset({"parallel", "dropout", "suite_rows"})
    meaning = "All ranks share one seed and drop the same activations, so their average is as noisy as one rank's."
    remedy = "Add the rank to the seed, after creating the weights."

    def judge(self, trace: Trace) -> Finding:
        windows, states = trace.of_every_rank(evidence.Window), dict[tuple[int, str], int]()
        problems = [
            f"step {window.step}: rank {rank} has the random state of rank {other}"
            for rank, held in windows.items()
            for window in held
            if (other := states.setdefault((window.step, window.random_state), rank)) != rank
        ]
        return self.unless(problems, f"{len(windows)} ranks draw differently in {len(windows[0])} steps", most=3)


class SavedByOneRank(Check):
    """One rank writes each file, and saving returns on every rank only after the files exist."""

    needs = frozenset({"parallel"})
    across_ranks = True
    meaning = "Several ranks write the same file at once. Or a rank continues before the file is complete."
    remedy = "Write on rank 0 only, then call a barrier on every rank."

    def judge(self, trace: Trace) -> Finding:
        if not trace.holds(Premise.SAVING_DECLARED):
            written = {at: {one.path for one in trace.of_rank(at).records(evidence.FileWritten)} for at in trace.ranks}
            files = sorted(required(set[str]().union(*written.values()), "no rank wrote tensors to a file"))
            ranks = {file: [str(rank) for rank, own in written.items() if file in own] for file in files}
            twice = [f"ranks {', '.join(by)} wrote {file}" for file, by in ranks.items() if len(by) > 1]
            return self.unless(twice, f"{len(files)} files, each written by one rank", most=2)
        required("adapters" in trace.run.features, "nothing is saved but by the checkpoint")
        problems: dict[str, str] = {}
        for rank, held in trace.of_every_rank(evidence.Saved).items():
            if len(writers := held[-1].writers) > 1:
                problems[f"ranks {', '.join(map(str, writers))} wrote"] = ""
            elif not writers:
                problems[f"saving returned on rank {rank} before any rank had written a file"] = ""
        return self.unless(problems, "one rank wrote the files, and every rank found them")


class ShardsEven(Check):
    """Each rank holds only its own shard of parameters, gradients and optimizer state."""

    across_ranks = True
    needs = frozenset({"sharded"})
    meaning = """A module was never sharded, or its parameters stay gathered after their pass. Each rank then holds it
    in full. FSDP does not reduce the gradients of a module that it does not wrap."""
    remedy = "Call fully_shard on every layer and on the root, before creating the optimizer."

    def judge(self, trace: Trace) -> Finding:
        shards = [(rank, seen) for rank, held in trace.of_every_rank(evidence.Shard).items() for seen in held]
        if not any("optimizer state" in shard.held or shard.larger for _, shard in shards):
            raise MissingEvidence("no step was recorded with an optimizer state")
        rank, worst = max(shards, key=lambda pair: (len(pair[1].larger), sum(pair[1].held.values())))
        held, even = sum(worst.held.values()), sum(worst.even.values())
        larger = f"; more than its shard of {some(worst.larger)}" if worst.larger else ""
        detail = f"rank {rank} holds {held:,} bytes in step {worst.step}, an even shard has {even:,}{larger}"
        return self.at_most(len(worst.larger), 0, detail)


class RanksKeepPace(Check):
    """All ranks compute at a similar speed."""

    across_ranks = True
    needs = frozenset({"parallel", Premise.CAUSAL_LM})
    speed = True
    meaning = "One device is throttled, shared, or in another power state. Every step waits for it."
    remedy = "Compare this device's clocks, temperature and processes with the others'. Remove it from the job."

    max_ratio: float = 3.0
    """Time per token of the forward passes over the median of the other ranks, exceeded in three steps of four. On two
    busy cores, two healthy ranks differed by up to 4 in single steps, and by 1.2 in the median of 11."""
    late_seconds: float = 5.0
    """Seconds that other ranks waited for this one before the training. The finding names a slower rank."""

    def judge(self, trace: Trace) -> Finding:
        waited = {rank: held[-1].waited_seconds for rank, held in trace.of_every_rank(evidence.Joined).items()}
        last = min(waited, key=waited.__getitem__)
        lag = max(waited.values()) - waited[last]
        late = f"; rank {last} started {lag:.0f} s after the first" if lag > self.late_seconds else ""
        timed = trace.of_every_rank(evidence.Pace).items()
        paces = {rank: {one.step: one.seconds / one.tokens for one in held if one.step > 0} for rank, held in timed}
        steps = sorted(set.intersection(*(set(held) for held in paces.values())))
        enough(len(steps), FEWEST_STEPS, f"steps after the first{late}")
        ratios = {rank: [_beside_others(paces, rank, step) for step in steps] for rank in paces}
        slowest = max(ratios, key=lambda rank: or_infinite(median(ratios[rank])))
        ratio, often = median(ratios[slowest]), quantiles(ratios[slowest], n=4)[0]
        detail = f"rank {slowest} is the slowest: {ratio:.2f} times the time per token of the others{late}"
        return self.at_most(often, self.max_ratio, detail)


def _beside_others(paces: dict[int, dict[int, float]], rank: int, step: int) -> float:
    """Return this rank's time per token in a step over the median of the others'; NaN where that is none."""
    others = median(held[step] for other, held in paces.items() if other != rank)
    return paces[rank][step] / others if others else math.nan
