"""Is the frozen base the same byte for byte?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check, some
from suite.evidence import Movement
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseUntouched(Check):
    """Every frozen tensor, quantisation statistics and buffers included, has the bytes it had before training."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"frozen"})
    meaning: ClassVar[str] = "the base was trained, repacked or merged into, or memory was corrupted"
    remedy: ClassVar[str] = (
        "look at the tensors below: all quantised ones after an evaluation means a kernel's repacking, a "
        "single one means hardware"
    )

    def judge(self, trace: Trace) -> Finding:
        seen = trace.one(Movement)
        detail = f"{len(seen.frozen_changed)} of {seen.frozen_tensors} frozen tensors changed"
        detail += (
            f": {some(seen.frozen_changed)}" if seen.frozen_changed else f" ({seen.frozen_bytes:,} bytes compared)"
        )
        return self.found(
            not seen.frozen_changed and seen.frozen_tensors > 0, detail, measured=len(seen.frozen_changed), limit=0
        )
