"""Does the pretrained model know its language?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.errors import MissingEvidence
from suite.evidence import Evaluation
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLossBelowUniform(Check):
    """The loss before training is well under ln(vocabulary), that of a uniform guess."""

    needs_pretrained: ClassVar[bool] = True
    meaning: ClassVar[str] = (
        "the weights were never loaded, the tokenizer is another model's, or the labels are wrong: the text "
        "would be noise"
    )
    remedy: ClassVar[str] = "look at base_matches_file and tokens_match_template; generate a sentence and read it"

    max_share: float = 0.8
    """Of ln V. SmolLM2-135M starts at 0.39 of it on the shipped data."""

    def judge(self, trace: Trace) -> Finding:
        first = next((e for e in trace.all(Evaluation) if e.step == 0), None)
        if first is None:
            raise MissingEvidence("there was no evaluation before the first step")
        uniform = math.log(trace.run["model"]["architecture"]["vocab_size"])
        limit = self.max_share * uniform
        detail = f"{first.loss:.3f} nats a token before training; a uniform guess has ln V = {uniform:.3f}"
        return self.found(first.loss <= limit, detail, measured=first.loss, limit=limit)
