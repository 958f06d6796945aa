"""Is the attention kernel the one asked for?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.evidence import ForwardPaths
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionAsAsked(Check):
    """The model's layers call the attention implementation that the run names."""

    meaning: ClassVar[str] = (
        "another attention implementation took over: memory and speed, and sometimes masks, are not what was asked for"
    )
    remedy: ClassVar[str] = "install what the implementation needs (flash-attn) or ask for sdpa"

    def judge(self, trace: Trace) -> Finding:
        asked, ran = trace.run["training"]["attention"], trace.one(ForwardPaths).attention
        return self.found(ran == asked, f"asked for {asked}, the layers call {ran}", measured=ran, limit=asked)
