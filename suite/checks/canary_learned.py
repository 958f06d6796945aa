"""Can the model say what it was taught?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.errors import MissingEvidence
from suite.evidence import Generation
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryLearned(Check):
    """An invented answer, unknown before training, comes back exactly, end token included, by greedy decoding."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"canary"})
    needs_pretrained: ClassVar[bool] = True
    meaning: ClassVar[str] = (
        "training does not reach what generation uses: another template at serving time, end token "
        "unsupervised, adapters not applied"
    )
    remedy: ClassVar[str] = "compare the texts below; look at tokens_match_template and adapters_applied"

    def judge(self, trace: Trace) -> Finding:
        answers = [g for g in trace.all(Generation) if g.expected]
        before = [g for g in answers if g.when == "start"]
        after = [g for g in answers if g.when == "end"]
        if not before or not after:
            raise MissingEvidence("the canary was not asked before and after training")
        known = before[-1].text.strip() == before[-1].expected
        right = after[-1].text.strip() == after[-1].expected and after[-1].ended
        detail = f"before {before[-1].text[:80]!r}, after {after[-1].text[:80]!r}"
        detail += "" if after[-1].ended else ", without an end token"
        detail += " (known before training: choose another canary)" if known else ""
        return self.found(right and not known, detail, measured=after[-1].text, limit=after[-1].expected)
