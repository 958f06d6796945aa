"""What a person expects of a training and no object of it declares."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from tunecheck.core.check import Check, some
from tunecheck.core.errors import MissingEvidence
from tunecheck.core.evidence import Census, Gradients, Movement, RowsGiven
from tunecheck.core.finding import Finding
from tunecheck.core.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class AsExpected(Check):
    """What was expected beside what the training declares is so: text that is learned, tensors, micro-batches."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"expectations"})
    meaning: ClassVar[str] = "the script does something else than you think: a mask, a name or an argument is not used"
    remedy: ClassVar[str] = "compare the expectation with the example below; correct the one that is wrong"

    def judge(self, trace: Trace) -> Finding:
        judged = {key: value for key, value in trace.run.expected.items() if key in JUDGED}
        problems = [f"{key}={value}: {told}" for key, value in judged.items() for told in JUDGED[key](trace, value)]
        detail = "; ".join(problems) or f"as expected: {', '.join(f'{key}={value}' for key, value in judged.items())}"
        return self.found(not problems, detail, measured=len(problems), limit=0)


def _texts(key: str, told: str) -> Callable[[Trace, Any], Iterator[str]]:
    """Return what judges the texts that are learned, which the probe has compared with the expression."""

    def problems(trace: Trace, _expression: str) -> Iterator[str]:
        seen = trace.one(RowsGiven)
        if key not in seen.expected:
            raise MissingEvidence(
                "the text of the rows is not known: the training has no tokenizer that tunecheck sees; "
                "call tunecheck.watch(..., tokenizer=...) in the script"
            )
        if rows := seen.expected[key]:
            yield f"{told} in {len(rows)} of {seen.rows} rows, for example {rows[0]}"

    return problems


def _trained(trace: Trace, expression: str) -> Iterator[str]:
    names = [name for name in trace.all(Census)[0].trainable if re.search(expression, name)]
    if not names:
        yield "no trained tensor has such a name"
    elif still := [name for name in (*trace.one(Movement).unmoved, *trace.one(Movement).idle) if name in names]:
        yield f"{len(still)} of {len(names)} such tensors did not move: {some(still, 2)}"


def _frozen(trace: Trace, expression: str) -> Iterator[str]:
    for told, names in (
        ("trained", trace.all(Census)[0].trainable),
        ("changed", trace.one(Movement).frozen_changed),
    ):
        if found := [name for name in names if re.search(expression, name)]:
            yield f"{len(found)} such tensors are {told}: {some(found, 2)}"


def _accumulation(trace: Trace, count: int) -> Iterator[str]:
    counts = [len(step.micro_batch_tokens) for step in trace.all(Gradients)]
    # a loader that ends leaves a short window: the last one of an epoch, not two in a row
    wrong = [step for step, seen in enumerate(counts) if seen > count or (seen < count and counts.count(seen) > 1)]
    if wrong or count not in counts:
        shown = wrong[0] if wrong else 0
        yield f"step {shown} has {counts[shown]} micro-batches"


JUDGED: dict[str, Callable[[Trace, Any], Iterator[str]]] = {
    "supervised": _texts("supervised", "no such text is learned"),
    "unsupervised": _texts("unsupervised", "such text is learned"),
    "trained": _trained,
    "frozen": _frozen,
    "accumulation": _accumulation,
}
"""Key of an expectation to what is wrong in a trace, a sentence each; other keys are judged by checks of their own."""
