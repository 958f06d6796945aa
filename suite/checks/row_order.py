"""Do the rows come in the order of the seed?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check, some
from suite.evidence import Window
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOrder(Check):
    """Each window holds the rows that the seed and the step prescribe:

    every row once an epoch, epochs in different orders.
    """

    meaning: ClassVar[str] = (
        "rows left out or repeated, an order that depends on more than the seed, or a resume that replays data"
    )
    remedy: ClassVar[str] = "derive the order from seed and epoch alone"

    def judge(self, trace: Trace) -> Finding:
        wrong = [window for window in trace.all(Window) if window.rows != window.expected_rows]
        detail = f"{len(trace.all(Window))} windows as prescribed"
        if wrong:
            detail = f"step {wrong[0].step}: rows {some(wrong[0].rows)}, prescribed {some(wrong[0].expected_rows)}"
        rows = sum(len(window.rows) for window in trace.all(Window))
        return self.found(not wrong and rows > 0, detail, measured=len(wrong), limit=0)
