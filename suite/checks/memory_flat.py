"""Does memory stay the same from step to step?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.errors import MissingEvidence
from suite.evidence import LiveTensors
from suite.finding import Finding
from suite.judging.trend import block_medians, trend
from suite.trace import Trace

FEWEST_SAMPLES = 8
"""With fewer, even samples that all rise could be chance: p is above 0.001."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFlat(Check):
    """At the same point of each step, after the warm-up, the same number of bytes is in use.

    On a GPU the allocator's bytes after every step, on the CPU those of the tensors that Python reaches after some.
    Both are the process's own, so others on the card do not matter.
    """

    applies_to: ClassVar[frozenset[str]] = frozenset({"many_steps"})
    subject: ClassVar[str] = "memory"
    meaning: ClassVar[str] = "something is kept at every step: losses with their graph, outputs, hooks, a growing cache"
    remedy: ClassVar[str] = "detach and release what is kept; live_tensors_flat tells whether tensors are"

    warm_up_steps: int = 20
    """Steps in which caches and the optimizer's state may still grow."""
    max_slope_bytes: float = 64.0
    """A step. Allocators count in units of 512, so a tensor kept every eighth step is found, and no smaller leak is."""
    max_rise_bytes: float = 65536.0
    """Over the whole run. A healthy step ends with up to ten losses and norms not yet read (512 bytes each) and one
    window of tokens (24 bytes each), under 40 KiB together at 512 tokens; twenty healthy runs of a tiny model on the
    CPU ended within 29 KiB of level. 30 steps at 4 KiB are 120 KiB."""
    max_p: float = 1e-3
    """Chance at which a series without a trend may look like this one (Mann-Kendall)."""

    def judge(self, trace: Trace) -> Finding:
        steps, sizes, source = _series(trace, self.warm_up_steps)
        if len(sizes) < FEWEST_SAMPLES:
            raise MissingEvidence(f"{len(sizes)} samples after {self.warm_up_steps} steps, {FEWEST_SAMPLES} are needed")
        found = trend(*block_medians(steps, sizes), confidence=0.95)
        rise = found.slope * (steps[-1] - steps[0])
        flat = found.slope <= self.max_slope_bytes or rise <= self.max_rise_bytes or found.p_rising >= self.max_p
        detail = (
            f"{source}: {rise:+,.0f} bytes from step {steps[0]:.0f} to {steps[-1]:.0f}, {found.slope:+,.0f} a step, "
            f"p = {found.p_rising:.2g}; a leak is more than {self.max_slope_bytes:g} a step at p < {self.max_p:g}"
        )
        return self.found(flat, detail, measured=rise, limit=self.max_rise_bytes)


def _series(trace: Trace, warm_up_steps: int) -> tuple[list[float], list[float], str]:
    """Steps, bytes and who counted them: the allocator where there is one, else Python."""
    known = [(s.step, s.allocated_bytes) for s in trace.steps if s.allocated_bytes is not None]
    source = "allocated"
    if not known:
        known, source = [(s.step, s.bytes) for s in trace.all(LiveTensors)], "live tensors"
    kept = [(float(step), float(size)) for step, size in known if step >= warm_up_steps]
    return [step for step, _ in kept], [size for _, size in kept], source
