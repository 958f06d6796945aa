"""Compare the bits of one deterministic run between nodes of one kind: a node whose result differs computes wrongly.

A wrong product that raises no error, silent data corruption, passes every check of its own node where it is small. It
cannot be told from another version of a library by one node, nor by two; by a majority of nodes of one kind it can.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

from tunecheck.core.finding import Domain, Finding, Status
from tunecheck.core.text import counted
from tunecheck.results.fleet import Answer, RunAnswer

CHECK = "nodes_agree"
MEANING = (
    "this card or processor computes wrongly without an error (silent data corruption), or its machine differs in "
    "something that is not part of the kind"
)
REMEDY = "take it out of service, run its vendor's diagnostics, and ask it once more before it comes back"


@dataclass(frozen=True, slots=True)
class Member:
    """One place's run in its group."""

    answer: Answer
    run: RunAnswer

    @property
    def bits(self) -> bytes:
        """Digest of the numbers, NaN being equal to the same NaN."""
        digest = sha256()
        for name, values in sorted(self.run.numbers.items()):
            digest.update(name.encode() + array("d", values).tobytes())
        return digest.digest()


def groups(answers: Iterable[Answer]) -> list[list[Member]]:
    """Return the runs that came to their end, by run, configuration and kind of node."""
    found: dict[tuple[object, ...], list[Member]] = {}
    for answer in answers:
        for run in answer.runs:
            if run.numbers:
                key = (run.run, run.fingerprint, run.deterministic, *sorted(run.kind.items()))
                found.setdefault(key, []).append(Member(answer, run))
    return list(found.values())


def agreements(group: Sequence[Member]) -> Iterator[tuple[str, Finding]]:
    """Yield each place of a group with its finding.

    A result is wrong where more than half of the places, on at least two nodes or all on this one, have another one.
    One that several nodes share is not: broken hardware is wrong in its own way each, and an unknown difference of the
    machines is not. Nothing is judged without a majority.
    """
    run = group[0].run
    if not run.deterministic:
        yield from _unjudged(group, f"{run.run} does not set training.deterministic, so that its bits may differ")
        return
    if len(group) == 1:
        yield from _unjudged(group, "no other node answered with this card or processor, driver, libraries and weights")
        return
    by_bits: dict[bytes, list[Member]] = {}
    for member in group:
        by_bits.setdefault(member.bits, []).append(member)
    most = max(by_bits.values(), key=len)
    if len(by_bits) > 1 and (2 * len(most) <= len(group) or (len(_nodes(most)) == 1 and len(_nodes(group)) > 1)):
        words = (
            f"{counted(len(group), 'place')} of this kind gave {len(by_bits)} results: which is wrong cannot be said"
        )
        (one, *_), (other, *_), *_ = by_bits.values()
        yield from _unjudged(group, f"{words}; ask a third node. {_departure(one, other)}", expected=False)
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
        meaning=MEANING,
        remedy=REMEDY,
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
