"""A check: one question with its limits, a pure function of a trace.

The dataclass fields of a check are its YAML keys. Write pass conditions so that NaN fails: `measured <= limit`.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar, TypeVar

from tunecheck.core.errors import MissingEvidence, NotApplicable, NothingCompared
from tunecheck.core.evidence import Census, Setup
from tunecheck.core.finding import Finding, Status
from tunecheck.core.frozen import Frozen, Record
from tunecheck.core.premises import Premise, Source
from tunecheck.core.trace import Trace
from tunecheck.core.unexpected import described

K = TypeVar("K")
T = TypeVar("T")
NAMED = "named"


class Check(Frozen, ABC):
    """Base of all checks. A subclass states its question in its docstring, its limits as fields, and `judge`."""

    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "strict": True, "allow_inf_nan": False}

    needs: ClassVar[frozenset[str]] = frozenset({Premise.CAUSAL_LM})
    """Features that a run must have for the check to be asked of it, and premises that must hold for it to judge.

    NAMED is the feature of a check whose limit belongs to one run: only a run whose YAML names the check has it.
    """
    without: ClassVar[tuple[type[Record], str] | None] = None
    """A record, and why a training may have none of it, so that there is nothing to judge."""
    premises_to_fail: ClassVar[frozenset[Premise]] = frozenset()
    """What must hold besides for a failure to prove anything. A check passes without."""
    across_ranks: ClassVar[bool] = False
    """True for a check that compares the processes of a training; any other is asked of each process's evidence."""
    convention: ClassVar[str] = ""
    """Who breaks this rule on purpose, or by another definition. In a training that is not ours, breaking it is then a
    suspicion, no failure."""
    speed: ClassVar[bool] = False
    """True for a check of speed, which other processes and throttling explain."""
    meaning: ClassVar[str]
    remedy: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Join the lines of the texts, which may be written over several."""
        super().__init_subclass__(**kwargs)
        for name in vars(cls).keys() & {"meaning", "remedy", "convention"}:
            setattr(cls, name, " ".join(getattr(cls, name).split()))

    @classmethod
    def key(cls) -> str:
        """Return the class name in snake case: table key and YAML key."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    @classmethod
    @cache  # each test of a tier asks it of all checks
    def features(cls) -> frozenset[str]:
        return cls.needs.difference(Premise)

    @property
    def question(self) -> str:
        """The first sentence of the docstring, on one line."""
        words = " ".join((type(self).__doc__ or "").split())
        return words[: found.end()] if (found := re.search(r"[.?](?= |$)", words)) else words

    def __call__(self, trace: Trace) -> Finding:
        """Judge the trace. Missing evidence makes the finding unjudged, never passed; nothing is raised for it.

        Where several processes trained, return the finding of the first that failed, else of the first unjudged one.
        """
        if self.across_ranks or len(trace.ranks) == 1:
            return self._asked(trace)
        found = {rank: self._asked(trace.of_rank(rank)) for rank in trace.ranks}
        told_first = (Status.FAILED, Status.SUSPECTED, Status.UNJUDGED, Status.PASSED)
        # what is unjudged as expected, another process may answer
        rank = min(found, key=lambda rank: (found[rank].expected, told_first.index(found[rank].status)))
        all_alike = len({(finding.status, finding.detail) for finding in found.values()}) == 1
        return found[rank] if all_alike else replace(found[rank], detail=f"rank {rank}: {found[rank].detail}")

    def _asked(self, trace: Trace) -> Finding:
        try:
            required(not (reason := trace.why(self.needs)), reason)
            if self.without is not None:
                required(trace.whole(self.without[0]), self.without[1])
            return self._weighed(self.judge(trace), trace)
        except NotApplicable as error:
            return self._unjudged(str(error), expected=True)
        except MissingEvidence as error:
            if reason := trace.why(self.needs, Source.PRESUMED):  # what could not be read may not be there
                return self._unjudged(reason, expected=True)
            censuses = trace.records(Census) if isinstance(error, NothingCompared) else []
            nothing = censuses and not any(census.trainable for census in censuses)
            return self._unjudged(NOTHING_TRAINABLE if nothing else str(error))
        except Exception as error:  # a number that no training records: one odd trace must not end the judging
            return self._unjudged(f"this check cannot read the trace: {described(error)}")

    def _weighed(self, finding: Finding, trace: Trace) -> Finding:
        """Return the finding, suspected where it may be meant. Raises NotApplicable for one that proves nothing."""
        if finding.status is not Status.FAILED:
            return replace(finding, meant="")
        if reason := trace.why(self.premises_to_fail):
            raise NotApplicable(f"{reason}; {finding.detail}")
        meant = finding.meant or trace.why(self.needs, Source.PRESUMED) or self.convention
        if not meant or trace.holds(Premise.INTENT_DECLARED):
            return replace(finding, meant="")
        return replace(finding, status=Status.SUSPECTED, meant=meant)

    @abstractmethod
    def judge(self, trace: Trace) -> Finding:
        """Return the finding. Raises NotApplicable for nothing to judge, MissingEvidence where evidence was lost."""

    def found(
        self,
        within: bool,
        detail: str,
        *,
        measured: float | str | None = None,
        limit: float | str | None = None,
        problems: Collection[object] = (),
        compared: int | None = None,
        meant: str = "",
        causes: Iterable[str] = (),
    ) -> Finding:
        """Return a judged finding of this check.

        `within` says whether the measured value is within its limit. `problems` are what else is wrong, which that
        value does not show: their number takes its place, so that what fails is seen to be outside of its limit.
        `meant` says who does what was found on purpose, where some do; see `convention`.
        `causes` are those that the detail proves, one for each thing that is wrong, or "" where it proves none. They
        take the place of all that the check knows, unless one is "". A mapping of problems holds the cause of each.
        `compared` counts what was compared; raises NothingCompared where that is nothing and nothing is wrong.
        """
        if within and problems:
            measured, limit = len(problems), 0
        proven = list(dict.fromkeys(causes or (problems.values() if isinstance(problems, Mapping) else ())))
        if compared == 0 and not problems and (within or measured != measured):  # the error of nothing is NaN
            raise NothingCompared(f"there was nothing to compare: {detail}")
        return Finding(
            check=self.key(),
            status=Status.PASSED if within and not problems else Status.FAILED,
            measured=measured,
            limit=limit,
            detail=detail,
            rule=self.question,
            meaning=" ".join(proven) if all(proven) and proven else self.meaning,
            remedy=self.remedy,
            meant=meant,
        )

    def at_most(self, measured: float, limit: float, detail: str, *others: tuple[float, float], **more: Any) -> Finding:
        """Return a finding that passes where the measured value is at most its limit, which no NaN is; see `found`.

        `others` are further values with their limits. Where the first one passes, the first of them that fails counts.
        """
        pairs = ((measured, limit), *others)
        measured, limit = next((pair for pair in pairs if not pair[0] <= pair[1]), pairs[0])
        return self.found(measured <= limit, detail, measured=measured, limit=limit, **more)

    def unless(self, problems: Collection[str], fine: str, *, most: int | None = None, **more: Any) -> Finding:
        """Return a finding that passes without problems; the detail is `fine`, or the first `most`; see `found`."""
        detail = "; ".join([*problems][:most]) or fine
        return self.found(not problems, detail, measured=len(problems), limit=0, problems=problems, **more)

    def _unjudged(self, reason: str, *, expected: bool = False) -> Finding:
        return Finding(check=self.key(), status=Status.UNJUDGED, detail=reason, expected=expected)


def required(found: T | None, reason: str) -> T:
    """Return what was found to judge. Raises NotApplicable for this reason where that is nothing."""
    if not found:
        raise NotApplicable(reason)
    return found


def recorded(found: T | None, reason: str) -> T:
    """Return what was recorded to judge. Raises MissingEvidence for this reason where that is nothing."""
    if not found:
        raise MissingEvidence(reason)
    return found


def enough(count: int, least: int, what: str) -> int:
    """Return the number of what is judged by a share or a spread. Raises NotApplicable where it is less than needed."""
    required(count >= least, f"{count} {what}, {least} are needed")
    return count


UNWITNESSED = "everything compared differs alike, so the reference itself may be wrong"


def unwitnessed(differing: int, compared: int, *, confirmed: bool = False) -> str:
    """Return why a failure against a reference is a suspicion; empty where it was right anywhere, or is `confirmed`."""
    return UNWITNESSED if differing >= compared > 1 and not confirmed else ""


NOTHING_TRAINABLE = "no parameter of the model requires a gradient"


def said_once(problems: Iterable[tuple[object, str, str]]) -> dict[str, str]:
    """Return each of these sentences with its cause ("" if unproven), behind the moments: "step 0 and 2 more: ..."."""
    moments = grouped(((sentence, cause), str(when).replace("_", " ")) for when, sentence, cause in problems)
    return {
        f"{when[0]}{f' and {len(when) - 1} more' if len(when) > 1 else ''}: {sentence}": cause
        for (sentence, cause), when in moments.items()
    }


def grouped(pairs: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """Return every key of these pairs with its values, in their order."""
    found: dict[K, list[T]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def holding(sentences: Mapping[str, object]) -> list[str]:
    return [sentence for sentence, condition in sentences.items() if condition]


def some(names: tuple[str, ...] | list[str], limit: int = 4) -> str:
    """Join the first few names, and the number of the others, for a sentence."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def relative_error(value: float, wanted: float) -> float:
    """Return |value - wanted| / |wanted|: 0 when they are equal, infinite when only the wanted one is 0."""
    return 0.0 if value == wanted else abs(value - wanted) / abs(wanted) if wanted else math.inf


def or_infinite(value: float) -> float:
    """Return the value, infinity for NaN: an error that is no number is the largest of all."""
    return math.inf if math.isnan(value) else value


def worst_of(items: Iterable[T], key: Callable[[T], float]) -> T:
    """Return the first item with the largest value; NaN counts as infinity, so that no later value hides it."""
    return max(items, key=lambda item: or_infinite(key(item)))


class NumericCheck(Check):
    """A check whose limit is a rounding error, so that it depends on the arithmetic's precision."""

    max_error_fp32: float
    max_error_16bit: float

    def limit(self, trace: Trace) -> float:
        """Return the limit for the precision that the run used. Raises MissingEvidence without a Setup record."""
        # A base in 8 bit rounds what a layer is given to 127 steps in fp32 too. Two orders of a sum that differ in the
        # last place then differ by a step somewhere (LLM.int8, arXiv 2208.07339).
        in_8_bit = any("int8" in census.frozen_dtypes for census in trace.records(Census))
        return self.max_error_fp32 if trace.one(Setup).exact and not in_8_bit else self.max_error_16bit


def binary_digits(value: float) -> int:
    """Return the binary digits that this number needs: 24 at most in fp32, 8 in bf16. 53 where it is not finite."""
    if not math.isfinite(value) or not value:
        return 53
    numerator = abs(int(math.frexp(value)[0] * 2**53))
    return 53 - ((numerator & -numerator).bit_length() - 1)
