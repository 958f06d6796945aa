"""Peaks measured on real GPUs: read from the history and the verdicts of earlier sessions."""

from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from tunecheck.core.errors import HistoryError
from tunecheck.core.frozen import Frozen
from tunecheck.core.paths import evidence_folder, reports_folder
from tunecheck.core.reading import read_json
from tunecheck.history.store import Store, history_file
from tunecheck.memory.constants import share_of


class MeasuredPeak(Frozen):
    """Allocator peak of one run on a GPU."""

    card: str
    allocator_bytes: int
    measured_at: str
    """ISO date."""

    @property
    def process_bytes(self) -> int:
        """Return the peak with the CUDA context, which the allocator does not see."""
        return self.allocator_bytes + share_of(self.card).cuda_context.bytes


def measured_peaks(fingerprint: str) -> dict[str, MeasuredPeak]:
    """Return the last peak of a run with this fingerprint by the GPU's name, from history and verdicts.

    Verdicts are those of local sessions and of committed evidence. The history's peak includes the probes; a verdict's
    is the training's own. Of the same session the larger counts. Only judged runs count: one that crashed may not have
    reached its peak. A file that is no verdict, or a history that cannot be used, is skipped: each session reports that
    itself.
    """
    found = [*_from_verdicts(fingerprint)]
    with suppress(HistoryError):
        found += Store(history_file()).peaks(fingerprint)
    return {
        card: MeasuredPeak(card=card, allocator_bytes=peak_bytes, measured_at=started_at[:10])
        for started_at, peak_bytes, card in sorted(found)
    }


def _from_verdicts(fingerprint: str) -> Iterator[tuple[str, int, str]]:
    """Yield the session's beginning, the peak and the GPU's name of each judged run of this fingerprint."""
    # not below a session: a fleet's has the verdicts of ten thousand nodes
    for folder, pattern in ((evidence_folder(), "**/verdict.json"), (reports_folder(), "*/verdict.json")):
        for path in sorted(folder.glob(pattern)):
            for started_at, peak_bytes, card, of in _peaks(path, path.stat().st_mtime_ns):
                if of == fingerprint:
                    yield started_at, peak_bytes, card


@lru_cache(maxsize=1024)  # admission needs it for every run
def _peaks(path: Path, modified_ns: int) -> list[tuple[str, int, str, str]]:
    """Return beginning, peak, GPU and fingerprint of each judged run of this verdict; none of what is no verdict."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        verdict: Any = read_json(path)
        return [
            (str(verdict["started_at"]), int(row["peak_bytes"]), row["device"].partition(" ")[2], row["fingerprint"])
            for row in verdict["runs"]
            if row["outcome"] in ("pass", "fail") and row["peak_kind"] == "allocator"
        ]
    return []
