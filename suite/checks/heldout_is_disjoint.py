"""Is the held-out split really held out?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check, some
from suite.evidence import DataSplit
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldoutIsDisjoint(Check):
    """No held-out row is a training row, evaluations take their own split's, and no token is beyond the embedding."""

    meaning: ClassVar[str] = "evaluation on training data: the held-out loss then only measures memory"
    remedy: ClassVar[str] = "split before any other processing, by instruction, not by row number"

    def judge(self, trace: Trace) -> Finding:
        seen = trace.one(DataSplit)
        problems = [f"{len(seen.shared)} held-out rows are in training: {some(seen.shared)}"] if seen.shared else []
        if seen.misplaced:
            problems.append(f"evaluations take other rows than their split's, or other labels: {some(seen.misplaced)}")
        if seen.largest_token_id >= seen.embedding_rows:
            problems.append(f"token id {seen.largest_token_id} is beyond the embedding's {seen.embedding_rows} rows")
        detail = "; ".join(problems) or f"{seen.train_rows} training rows, {seen.heldout_rows} held out"
        return self.found(not problems and seen.heldout_rows > 0, detail, measured=len(seen.shared), limit=0)
