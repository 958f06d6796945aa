"""Does an untouched adapter change nothing?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import NumericCheck
from suite.evidence import AdapterStart
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptersStartNeutral(NumericCheck):
    """Before training, every adapted linear gives what its base gives, in train mode with its dropout too."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"adapters"})
    meaning: ClassVar[str] = (
        "the adapter's initialisation changes the function: training starts from another model than the base; or "
        "dropout falls on the base too"
    )
    remedy: ClassVar[str] = (
        "use peft's default initialisation (B = 0), or subtract the adapter from the base as PiSSA does"
    )

    max_error_fp32: float = 1e-6  # B = 0 adds exact zeros: 0.0 measured
    max_error_16bit: float = 1e-6

    def judge(self, trace: Trace) -> Finding:
        difference, limit = trace.one(AdapterStart).start_difference, self.limit(trace)
        detail = "largest difference of an adapted linear from its base, over the base's largest output"
        return self.found(difference <= limit, detail, measured=difference, limit=limit)
