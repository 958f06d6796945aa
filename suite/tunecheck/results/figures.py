"""The figures of a run that are compared between sessions: their direction, and changes too small to count."""

import math
from typing import Literal

from tunecheck.core.frozen import Frozen
from tunecheck.core.text import human_bytes

MIB = 2**20


class Figure(Frozen):
    """One figure."""

    name: str
    """Its key in the store and in baseline files."""
    title: str
    unit: Literal["bytes", "nats", "tokens/s", "°C", "MHz"]
    lower_is_better: bool = True
    floor_share: float
    """Smallest change that counts, as a share of the median."""
    floor: float = 0.0
    """Smallest change that counts, in the figure's own unit."""
    sessions: int = 1
    """Sessions in a row that must be worse: two where the figure depends on other processes."""

    def amount(self, value: float | None) -> str:
        """Return the value with its unit; empty for none."""
        if value is None:
            return ""
        return human_bytes(value) if self.unit == "bytes" and math.isfinite(value) else f"{value:.4g} {self.unit}"


FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        Figure(
            name="tokens_per_second",
            title="throughput",
            unit="tokens/s",
            lower_is_better=False,
            floor_share=0.10,
            sessions=2,
        ),
        Figure(name="peak_allocated_bytes", title="allocator peak", unit="bytes", floor_share=0.01, floor=2 * MIB),
        Figure(name="live_tensor_bytes", title="live tensors", unit="bytes", floor_share=0.01, floor=MIB),
        Figure(
            name="resident_bytes", title="resident memory", unit="bytes", floor_share=0.20, floor=64 * MIB, sessions=2
        ),
        Figure(name="probe_loss", title="probe loss", unit="nats", floor_share=0.02),
        Figure(name="heldout_loss", title="held-out loss", unit="nats", floor_share=0.02),
        Figure(name="training_loss", title="training loss", unit="nats", floor_share=0.05, sessions=2),
    )
}
"""Live tensors and losses repeat to the byte and to the last digits on one machine, and the allocator's peak should;
their floors are for another patch release's roundings. Resident memory of one and the same run lay between 868 and 1166
MiB and its throughput between 53 and 118 tokens/s in 21 sessions of `quick` on a shared 2-core machine."""


def change(before: float, after: float) -> float | None:
    """Return (after - before) / |before|; None where that is no number."""
    if before == 0 or not (math.isfinite(before) and math.isfinite(after)):
        return None
    return (after - before) / abs(before)
