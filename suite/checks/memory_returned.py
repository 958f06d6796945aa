"""Is the memory given back?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.errors import MissingEvidence
from suite.evidence import Released
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReturned(Check):
    """After the session is torn down, nearly none of its tensors are alive."""

    subject: ClassVar[str] = "memory"
    meaning: ClassVar[str] = (
        "a global list, a closure, a hook or a kept exception holds the model: the next run starts with less memory"
    )
    remedy: ClassVar[str] = "drop references in finally; never keep exceptions or outputs in module-level lists"

    max_share: float = 0.01
    """Of the session's bytes; 1e-5 measured."""

    def judge(self, trace: Trace) -> Finding:
        seen = trace.one(Released)
        if seen.session_bytes <= 0:
            raise MissingEvidence("the session held no memory that could be returned")
        share = seen.bytes / seen.session_bytes
        detail = (
            f"{seen.tensors} tensors, {max(0, seen.bytes):,} of {seen.session_bytes:,} bytes still alive after teardown"
        )
        return self.found(share <= self.max_share, detail, measured=share, limit=self.max_share)
