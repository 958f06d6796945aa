"""The figures of a run that are followed from night to night: which way is good, and what is too little to count."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from suite.evidence import Evaluation, LiveTensors, Phase
from suite.judging.telemetry import busy_host

if TYPE_CHECKING:
    from suite.report import RunReport
    from suite.trace import Trace

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One of them."""

    name: str
    """Its key in the store and in baseline files."""
    title: str
    unit: Literal["bytes", "nats", "tokens/s"]
    lower_is_better: bool = True
    floor_share: float
    """A change of less than this share of the median is none."""
    floor: float = 0.0
    """Nor is one of less than this, in the figure's own unit."""
    nights: int = 1
    """How many nights in a row must be worse: two where the figure scatters with what else the machine does."""


FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        Figure(
            name="tokens_per_second",
            title="throughput",
            unit="tokens/s",
            lower_is_better=False,
            floor_share=0.10,
            nights=2,
        ),
        Figure(name="peak_allocated_bytes", title="allocator peak", unit="bytes", floor_share=0.01, floor=2 * MIB),
        Figure(name="live_tensor_bytes", title="live tensors", unit="bytes", floor_share=0.01, floor=MIB),
        Figure(
            name="resident_bytes", title="resident memory", unit="bytes", floor_share=0.20, floor=64 * MIB, nights=2
        ),
        Figure(name="probe_loss", title="probe loss", unit="nats", floor_share=0.02),
        Figure(name="heldout_loss", title="held-out loss", unit="nats", floor_share=0.02),
    )
}
"""Live tensors and losses repeat to the byte and to the last digits on one machine, and the allocator's peak should;
their floors are for another patch release's roundings. Resident memory of one and the same run lay between 868 and 1166
MiB and its throughput between 53 and 118 tokens/s in 21 sessions of `quick` on a shared 2-core machine."""


def figures_of(row: RunReport, trace: Trace) -> dict[str, float]:
    """The figures of a run whose training finished, by name; what was not measured is left out.

    On a card the allocator's peak stands for the memory, on a CPU live tensors and the resident set do. A pace that
    others slowed down is no figure, as for the checks of speed: neither is it judged, nor does it become the usual one.
    """
    heldout = [found.loss for found in trace.main.all(Evaluation) if found.split == "heldout"]
    live = [found.bytes for found in trace.main.all(LiveTensors)]
    on_card = row.peak_kind == "allocator"
    measured: dict[str, float | None] = {
        "tokens_per_second": None if busy_host(trace) else row.tokens_per_second,
        "peak_allocated_bytes": row.peak_bytes if on_card else None,
        "live_tensor_bytes": live[-1] if live and not on_card else None,
        "resident_bytes": row.peak_bytes if row.peak_kind == "resident" else None,
        "probe_loss": row.probe_loss_end,
        "heldout_loss": heldout[-1] if heldout else None,
    }
    return {name: float(value) for name, value in measured.items() if value is not None}


def needed_bytes(trace: Trace) -> int | None:
    """The allocator's peak over all phases, the probes in between included; None where no allocator counts.

    Of every attempt that finished: variants may take more than the run as asked, and one that ran out of memory says
    nothing of what the others need. This is what a card must hold, where the row's peak is what the training takes.
    """
    phases = [phase for attempt in trace.attempts if attempt.finished for phase in attempt.all(Phase)]
    peaks = [phase.peak_allocated_bytes for phase in phases] + [phase.probes_peak_allocated_bytes for phase in phases]
    return max((peak for peak in peaks if peak is not None), default=None)


def change(before: float, after: float) -> float | None:
    """(after - before) / |before|; None where that is no number."""
    if before == 0 or not (math.isfinite(before) and math.isfinite(after)):
        return None
    return (after - before) / abs(before)
