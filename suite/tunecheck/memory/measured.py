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


def measured_peak(fingerprint: str, gpu_name: str) -> MeasuredPeak | None:
    """Return the last peak of a run with this fingerprint on a GPU of this name, from history and verdicts.

    Verdicts are those of local sessions and of committed evidence. The history's peak includes the probes; a verdict's
    is the training's own. Of the same session the larger counts. Only judged runs count: one that crashed may not have
    reached its peak. A file that is no verdict, or a history that cannot be used, is skipped: each session reports that
    itself.
    """
    found = [(started_at, peak) for card, started_at, peak in _from_verdicts(fingerprint) if card == gpu_name]
    with suppress(HistoryError):
        entries = Store(history_file()).peaks(fingerprint, gpu_name)
        found += [(entry.started_at, entry.needed_bytes) for entry in entries if entry.needed_bytes is not None]
    if not found:
        return None
    started_at, peak_bytes = max(found)
    return MeasuredPeak(card=gpu_name, allocator_bytes=peak_bytes, measured_at=started_at[:10])


def measured_peaks(fingerprint: str) -> list[MeasuredPeak]:
    """Return the last peak of a run with this fingerprint on every GPU for which a verdict has one."""
    cards = {card for card, _, _ in _from_verdicts(fingerprint)}
    return [peak for card in sorted(cards) if (peak := measured_peak(fingerprint, card)) is not None]


def _from_verdicts(fingerprint: str) -> Iterator[tuple[str, str, int]]:
    """Yield the GPU's name, the session's beginning and the peak of each judged run of this fingerprint."""
    for verdict in _verdicts():
        for row in verdict["runs"]:
            judged = row["outcome"] in ("pass", "fail")
            if judged and row["fingerprint"] == fingerprint and row["peak_kind"] == "allocator":
                yield row["device"].partition(" ")[2], verdict["started_at"], row["peak_bytes"]


def _verdicts() -> Iterator[dict[str, Any]]:
    # not below a session: a fleet's has the verdicts of ten thousand nodes
    for folder, pattern in ((evidence_folder(), "**/verdict.json"), (reports_folder(), "*/verdict.json")):
        for path in sorted(folder.glob(pattern)):
            if (verdict := _read(path, path.stat().st_mtime_ns)) is not None:
                yield verdict


@lru_cache(maxsize=1024)  # admission needs it for every run
def _read(path: Path, modified_ns: int) -> dict[str, Any] | None:
    try:
        verdict: Any = read_json(path)
    except (OSError, ValueError):
        return None
    keys = {"fingerprint", "peak_bytes", "peak_kind", "outcome", "device"}
    if not isinstance(verdict, dict) or not isinstance(verdict.get("runs"), list) or "started_at" not in verdict:
        return None
    whole = all(isinstance(row, dict) and keys <= row.keys() for row in verdict["runs"])
    return verdict if whole else None
