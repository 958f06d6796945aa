"""Compare the places of one kind: the bits of a deterministic run, and its figures.

A wrong product that raises no error, silent data corruption, passes every check of its own node where it is small. It
cannot be told from another version of a library by one node, nor by two; by a majority of nodes of one kind it can.
A node that is slower, larger, hotter or lower in clock than others is found by the rule of previous sessions
(tunecheck.results.baseline): beyond median + max(5 x 1.4826 x MAD, the floor). A single session says less than two in a
row, so the floors are wider here, and only the speed decides anything.
"""

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from tunecheck.core.check import grouped
from tunecheck.core.finding import Domain, Finding, Status
from tunecheck.core.text import counted
from tunecheck.results.baseline import FIGURES as OF_SESSIONS
from tunecheck.results.baseline import Figure, baseline_of, by_name, judge
from tunecheck.results.fleet import Answer, RunAnswer

CHECK = "nodes_agree"

SPEED = replace(OF_SESSIONS["tokens_per_second"], floor_share=0.25, sessions=1)
FIGURES = by_name(
    SPEED,
    OF_SESSIONS["peak_allocated_bytes"],
    replace(OF_SESSIONS["resident_bytes"], sessions=1),
    Figure(name="temperature_celsius", title="temperature", unit="°C", floor_share=0.0, floor=10.0),
    Figure(name="sm_clock_mhz", title="SM clock", unit="MHz", lower_is_better=False, floor_share=0.10),
)
"""Floors are differences between healthy nodes that shall not count. They are chosen, not measured: no fleet of GPUs
was there. That of the speed is the 10 % of previous sessions and as much again for what a node's neighbours do; that of
the temperature is for cards one behind the other in one stream of air."""


@dataclass(frozen=True, slots=True)
class Member:
    """One place's run in its group."""

    answer: Answer
    run: RunAnswer

    @property
    def kind(self) -> tuple[object, ...]:
        """Run, configuration and kind of node, which those have in common that are compared."""
        return self.run.run, self.run.fingerprint, self.run.deterministic, *sorted(self.run.kind.items())

    @property
    def bits(self) -> bytes:
        """Digest of the numbers, NaN being equal to the same NaN."""
        digest = sha256()
        for name, values in sorted(self.run.numbers.items()):
            digest.update(name.encode() + array("d", values).tobytes())
        return digest.digest()


def members(answers: Iterable[Answer]) -> list[Member]:
    return [Member(answer, run) for answer in answers for run in answer.runs]


def agreements(group: Sequence[Member]) -> Iterator[tuple[str, Finding]]:
    """Yield each place of a group with its finding.

    A result is wrong where more than half of the places, on at least two nodes or all on this one, have another one.
    One that several nodes share is not: broken hardware is wrong in its own way each, and an unknown difference of the
    machines is not. Nothing is judged without a majority.
    """
    if not (run := group[0].run).deterministic:
        yield from _unjudged(group, f"{run.run} does not set training.deterministic, so its bits may differ")
        return
    if len(group) == 1:
        yield from _unjudged(group, "no other node answered with this card or processor, driver, libraries and weights")
        return
    by_bits = grouped((member.bits, member) for member in group)
    most = max(by_bits.values(), key=len)
    if len(by_bits) > 1 and (2 * len(most) <= len(group) or (len(_nodes(most)) == 1 and len(_nodes(group)) > 1)):
        (one, *_), (other, *_), *_ = by_bits.values()
        words = f"{counted(len(group), 'place')} of this kind gave {len(by_bits)} results"
        why = f"{words}: tunecheck cannot tell which is wrong; ask a third node. {_departure(one, other)}"
        yield from _unjudged(group, why, expected=False)
        return
    for members in by_bits.values():
        if members is most:
            alike = f"{len(most)} of {len(group)} alike"
            passed = Finding(check=CHECK, status=Status.PASSED, measured=alike, limit="the same bits")
            yield from ((member.answer.place, passed) for member in most)
        elif len(_nodes(members)) > 1:
            words = f"{counted(len(members), 'place')} on {len(_nodes(members))} nodes agree, and differ from the other"
            why = f"{words} {len(most)}: another setting of these machines is likelier than {len(members)} broken ones"
            yield from _unjudged(members, f"{why}. {_departure(members[0], most[0])}", expected=False)
        else:
            yield from ((m.answer.place, _failed(m, most, len(group))) for m in members)


def _failed(member: Member, most: Sequence[Member], total: int) -> Finding:
    return Finding(
        check=CHECK,
        status=Status.FAILED,
        measured=f"another result than {len(most)} of {total}",
        limit="the same bits",
        detail=f"{member.run.run}: {_departure(member, most[0])}",
        meaning="this card or processor computes wrongly without an error (silent data corruption), or its machine "
        "differs in something that is not part of the kind",
        remedy="take it out of service, run its vendor's diagnostics, and check it again before it returns",
        domain=Domain.HARDWARE,
        evidence=f"{len(most)} places of this kind agree to the last bit",
    )


def _unjudged(group: Iterable[Member], detail: str, *, expected: bool = True) -> Iterator[tuple[str, Finding]]:
    for member in group:
        yield member.answer.place, Finding(check=CHECK, status=Status.UNJUDGED, detail=detail, expected=expected)


def _departure(here: Member, there: Member) -> str:
    """Return the first number in which two runs differ: "gradient norm 3: 1.25 here, 1.75 on n1"."""
    for name in here.run.numbers:
        mine, theirs = here.run.numbers[name], there.run.numbers.get(name, ())
        for place, (a, b) in enumerate(zip(mine, theirs, strict=False)):
            if array("d", [a]).tobytes() != array("d", [b]).tobytes():
                return f"first at {name} {place}: {a!r} on {here.answer.place}, {b!r} on {there.answer.place}"
        if len(mine) != len(theirs):
            return f"{len(mine)} times {name} on {here.answer.place}, {len(theirs)} on {there.answer.place}"
    return f"{here.answer.place} lacks numbers that {there.answer.place} has"


def _nodes(members: Iterable[Member]) -> set[str]:
    return {member.answer.node for member in members}


def outliers(group: Sequence[Member]) -> Iterator[tuple[Member, Figure, float, float, float]]:
    """Yield the member, the figure, its value, median and limit of each that is worse than its kind, NaN included."""
    for name, figure in FIGURES.items():
        held = [(member, member.run.figures[name]) for member in group if name in member.run.figures]
        values = [value for _, value in held if math.isfinite(value)]
        if len(values) < 8:  # of so few a median absolute deviation says little
            continue
        around = baseline_of(values, most=len(values))
        for member, value in held:
            status, last_good = judge(figure, value, around, confirmed=True)
            if status == "worse":
                yield member, figure, value, around.median, last_good


def slow(said: str, value: float, last_good: float) -> Finding:
    """Return the finding of a place that is too slow."""
    return Finding(
        check="node_speed",
        status=Status.FAILED,
        measured=value,
        limit=last_good,
        detail=said,
        meaning="a job over several nodes waits for this one at every step",
        remedy="compare its clocks, power limit, temperature and other processes with those of a neighbour",
        domain=Domain.UNKNOWN,
        evidence="what slows it was not measured; its own page has its telemetry",
    )


def words(figure: Figure, value: float, middle: float, last_good: float) -> str:
    """Return a figure with what its kind measures: "throughput 410 tokens/s, median 2211, limit 1769"."""
    amount = figure.amount
    return f"{figure.title} {amount(value)}, median of its kind {amount(middle)}, limit {amount(last_good)}"
