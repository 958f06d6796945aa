"""Are the token ids the template's, and the labels the answer?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.evidence import Window
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensMatchTemplate(Check):
    """Every row is one of the data set, rendered by the template, with exactly answer and end token supervised."""

    meaning: ClassVar[str] = (
        "a second start token, an answer cut off, an end token masked with the padding, padding or prompt "
        "supervised, labels shifted in the collator"
    )
    remedy: ClassVar[str] = (
        "read the example below; leave shifting to the loss; mask padding by the attention mask, not by the token id"
    )

    def judge(self, trace: Trace) -> Finding:
        windows = trace.all(Window)
        problems = {kind: (w.step, example) for w in reversed(windows) for kind, example in w.problems.items()}
        detail = "; ".join(f"step {step}: {kind} ({example})" for kind, (step, example) in problems.items())
        rows = sum(len(window.rows) for window in windows)
        return self.found(not problems and rows > 0, detail or f"{rows} rows audited", measured=len(problems), limit=0)
