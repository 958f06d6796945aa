"""Do the rows come in the order of the seed?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check, some
from suite.evidence import Dataset, DataSplit, Window
from suite.finding import Finding
from suite.trace import Trace

ROWS_THAT_MUST_DIFFER = 6
"""From so many rows on two epochs have the same order by chance less than once in 700 times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOrder(Check):
    """Each window holds the rows that the seed and the step prescribe, of the files that the trace names:

    every row once an epoch, epochs in different orders.
    """

    meaning: ClassVar[str] = (
        "rows left out or repeated, an order that depends on more than the seed, rows of another file, or a resume "
        "that replays data"
    )
    remedy: ClassVar[str] = "derive the order from seed and epoch alone"

    def judge(self, trace: Trace) -> Finding:
        problem = _other_files(trace) or _epochs(trace.all(Window), trace.one(DataSplit).train_rows)
        wrong = [window for window in trace.all(Window) if window.rows != window.expected_rows]
        detail = f"{len(trace.all(Window))} windows as prescribed"
        if wrong:
            detail = f"step {wrong[0].step}: rows {some(wrong[0].rows)}, prescribed {some(wrong[0].expected_rows)}"
        elif problem:
            detail = problem
        rows = sum(len(window.rows) for window in trace.all(Window))
        return self.found(not wrong and not problem and rows > 0, detail, measured=len(wrong), limit=0)


def _other_files(trace: Trace) -> str:
    """What is wrong with the files that were read; empty when they are those that the trace names."""
    named, read = trace.one(Dataset).sha256, trace.one(DataSplit).dataset_sha256
    return "" if named == read else f"the files read have the digest {read[:12]}, the trace names {named[:12]}"


def _epochs(windows: list[Window], train_rows: int) -> str:
    """What is wrong with the epochs that the rows make up, by the rows alone; empty when nothing is.

    Only the windows before the first gap count: of a long run not all are audited.
    """
    rows: list[str] = []
    for number, window in enumerate(windows):
        if window.step != number:
            break
        rows += [row for row in window.rows if row != "canary"]
    epochs = [rows[first : first + train_rows] for first in range(0, len(rows), max(1, train_rows))]
    for number, epoch in enumerate(epochs):
        if len(set(epoch)) != len(epoch):
            return f"epoch {number}: {len(epoch) - len(set(epoch))} rows come more than once"
    whole = [tuple(epoch) for epoch in epochs if len(epoch) == train_rows >= ROWS_THAT_MUST_DIFFER]
    return "two epochs have the same order" if len(set(whole)) != len(whole) else ""
