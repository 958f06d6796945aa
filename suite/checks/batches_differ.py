"""Is every batch new?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.evidence import DataSplit, Window
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchesDiffer(Check):
    """No micro-batch comes twice before the training set has been used up."""

    meaning: ClassVar[str] = (
        "the data loader starts over at each step, or a seed is reset: the model memorises one batch, and its "
        "loss falls beautifully"
    )
    remedy: ClassVar[str] = "do not create the iterator inside the loop; do not reseed in it"

    def judge(self, trace: Trace) -> Finding:
        windows = trace.all(Window)
        per_epoch = max(1, trace.one(DataSplit).train_rows // max(1, len({*windows[0].rows} - {"canary"})))
        digests = [digest for window in windows if window.step < per_epoch for digest in window.digests]
        repeated = len(digests) - len(set(digests))
        detail = f"{len(digests)} micro-batches, {repeated} of them repeated"
        return self.found(repeated == 0 and len(digests) > 0, detail, measured=repeated, limit=0)
