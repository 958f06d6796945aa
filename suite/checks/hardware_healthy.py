"""Is the card in order?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.evidence import Setup
from suite.finding import Finding
from suite.judging.telemetry import hardware_faults, telemetry, unclear_signs
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareHealthy(Check):
    """While the run trained, the card and its driver reported no fault: memory errors, Xids, a reset that is due.

    Counters are compared before and after each attempt. Throttling is no fault, and what the card does not tell is
    neither good nor bad.
    """

    subject: ClassVar[str] = "hardware"
    meaning: ClassVar[str] = (
        "the card, its power, its slot or its driver is faulty: no result of this run can be trusted"
    )
    remedy: ClassVar[str] = (
        "look for Xid in the kernel log, reboot, run again; if it comes back, have the card replaced"
    )

    def judge(self, trace: Trace) -> Finding:
        if faults := hardware_faults(trace):
            return self.found(False, "; ".join(faults), measured=len(faults), limit=0)
        used = [attempt for attempt in trace.attempts if attempt.start.device.startswith("cuda")]
        if not used:
            device = trace.one(Setup).device  # a run that never began is no run on the CPU
            return self.unjudged(f"trained on {device}: no card was involved", expected=True)
        for attempt in used:
            seen = telemetry(attempt)
            if seen is None or not seen.complete:
                why = seen.problem if seen else "nobody metered it"
                return self.unjudged(f"the card was not watched to the end of the {attempt.start.purpose}: {why}")
        signs = unclear_signs(trace)
        return self.found(True, "; ".join(signs) or f"{len(used)} attempts watched", measured=0, limit=0)
