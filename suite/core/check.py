"""A check: one question with its limits, a pure function of a trace.

The dataclass fields of a check are its YAML keys. Write pass conditions so that NaN fails: `measured <= limit`.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from suite.core.errors import MissingEvidence
from suite.core.evidence import Setup
from suite.core.finding import Finding, Status
from suite.core.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(ABC):
    """Base of all checks. A subclass states its question in its docstring, its limits as fields, and `judge`."""

    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "strict": True}

    applies_to: ClassVar[frozenset[str]] = frozenset()
    """Features a run must have to be asked this."""
    opt_in: ClassVar[bool] = False
    """True for a check whose limit belongs to one run: it is asked only where the YAML names it."""
    needs_pretrained: ClassVar[bool] = False
    """True for a check about learning: random weights leave it unjudged."""
    subject: ClassVar[str] = "result"
    """What it is about: result, memory, speed or hardware. Others on the card and throttling explain speed alone."""
    meaning: ClassVar[str]
    """What a failure usually means."""
    remedy: ClassVar[str]
    """What to do about it."""

    @property
    def name(self) -> str:
        """The class name in snake case: file name, table key and YAML key."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()

    @property
    def question(self) -> str:
        """What is asked: the whole first sentence of the docstring, on one line."""
        words = " ".join((type(self).__doc__ or "").split())
        return words[: found.end()] if (found := re.search(r"[.?](?= |$)", words)) else words

    def __call__(self, trace: Trace) -> Finding:
        """The finding for this trace. Missing evidence is unjudged, never passed; nothing is raised for it."""
        try:
            if self.needs_pretrained and not trace.pretrained:
                return self.unjudged("the weights are random: what depends on learning is not judged", expected=True)
            return self.judge(trace)
        except MissingEvidence as error:
            return self.unjudged(str(error))

    @abstractmethod
    def judge(self, trace: Trace) -> Finding:
        """The finding, with what was measured; raises MissingEvidence when the trace cannot answer."""

    def found(
        self, passed: bool, detail: str, *, measured: float | str | None = None, limit: float | str | None = None
    ) -> Finding:
        """A judged finding of this check."""
        return Finding(
            check=self.name,
            status=Status.PASSED if passed else Status.FAILED,
            measured=measured,
            limit=limit,
            detail=detail,
            meaning=self.meaning,
            remedy=self.remedy,
        )

    def unjudged(self, reason: str, *, expected: bool = False) -> Finding:
        """An unjudged finding of this check."""
        return Finding(check=self.name, status=Status.UNJUDGED, detail=reason, expected=expected)


def some(names: tuple[str, ...] | list[str], limit: int = 4) -> str:
    """The first few names and how many more there are, for a sentence."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def relative_error(value: float, wanted: float) -> float:
    """The difference over the wanted value: 0 when they are equal, infinite when only the wanted one is 0."""
    if value == wanted:
        return 0.0
    return abs(value - wanted) / abs(wanted) if wanted else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericCheck(Check):
    """A check whose limit is a rounding error, so that it depends on the arithmetic's precision."""

    max_error_fp32: float
    """Largest error in fp32."""
    max_error_16bit: float
    """Largest error in bf16 or fp16."""

    def limit(self, trace: Trace) -> float:
        """The limit for the precision that the run really used. Raises MissingEvidence without a Setup record."""
        return self.max_error_fp32 if trace.one(Setup).precision == "fp32" else self.max_error_16bit


def trains_16bit_weights(trace: Trace) -> bool:
    """Whether what learns is itself kept in 16 bit, as the run asked, so that small updates are rounded away."""
    lora = trace.run.get("lora") or {}
    return lora.get("adapter_dtype") == "model" and trace.one(Setup).precision != "fp32"
