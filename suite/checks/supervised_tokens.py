"""Is the right number of tokens supervised?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.evidence import Window
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedTokens(Check):
    """Every window supervises as many tokens as the data set's answers have; the trainer counts these and all alike."""

    meaning: ClassVar[str] = (
        "masking removes answers or keeps prompts; a wrong count also scales the loss and its gradient, or makes the "
        "training look faster"
    )
    remedy: ClassVar[str] = "compare with the answers' lengths; look at tokens_match_template"

    def judge(self, trace: Trace) -> Finding:
        reported = {step.step: step for step in trace.steps}
        problems = []
        for window in trace.all(Window):
            if window.supervised_tokens != window.expected_supervised_tokens:
                problems.append(
                    f"step {window.step}: {window.supervised_tokens}, expected {window.expected_supervised_tokens}"
                )
            elif (step := reported.get(window.step)) is not None:
                if step.supervised_tokens != window.supervised_tokens:
                    counted = f"{window.supervised_tokens}, the trainer counts {step.supervised_tokens}"
                    problems.append(f"step {window.step}: {counted}")
                if step.tokens != window.tokens:
                    counted = f"{window.tokens} tokens without padding, the trainer counts {step.tokens}"
                    problems.append(f"step {window.step}: {counted}")
        total = sum(window.supervised_tokens for window in trace.all(Window))
        return self.found(
            not problems and total > 0, "; ".join(problems[:3]) or f"{total} supervised tokens", measured=total
        )
