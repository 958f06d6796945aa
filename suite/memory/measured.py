"""Peaks that the suite measured on real cards: read from the verdicts of earlier sessions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from suite.memory.card import CUDA_CONTEXT
from suite.paths import project_folder, reports_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPeak:
    """One run's allocator peak on a card."""

    allocator_bytes: int
    measured_at: str
    """ISO date."""

    @property
    def process_bytes(self) -> int:
        """With the CUDA context, which the allocator does not see."""
        return self.allocator_bytes + CUDA_CONTEXT.bytes


def measured_peak(fingerprint: str, gpu_name: str) -> MeasuredPeak | None:
    """The newest peak of a run with this fingerprint on a card of this name, in committed evidence or local reports.

    Only runs count that were judged: one that crashed may not have reached its peak. A file that is no verdict is
    passed over, since it proves nothing.
    """
    peaks = [
        MeasuredPeak(allocator_bytes=row["peak_bytes"], measured_at=verdict["started_at"][:10])
        for verdict in _verdicts()
        for row in verdict["runs"]
        if row["fingerprint"] == fingerprint
        and row["peak_kind"] == "allocator"
        and row["outcome"] in ("pass", "fail")
        and row["device"].endswith(f" {gpu_name}")
    ]
    return max(peaks, key=lambda peak: peak.measured_at, default=None)


def _verdicts() -> Iterator[dict[str, Any]]:
    for folder in (project_folder() / "reports" / "evidence", reports_folder()):
        for path in sorted(folder.glob("**/verdict.json")):
            if (verdict := _read(path, path.stat().st_mtime_ns)) is not None:
                yield verdict


@lru_cache(maxsize=1024)  # the gate asks for every run; a session's folder is read once
def _read(path: Path, modified_ns: int) -> dict[str, Any] | None:
    try:
        verdict: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    keys = {"fingerprint", "peak_bytes", "peak_kind", "outcome", "device"}
    if not isinstance(verdict, dict) or not isinstance(verdict.get("runs"), list) or "started_at" not in verdict:
        return None
    whole = all(isinstance(row, dict) and keys <= row.keys() for row in verdict["runs"])
    return verdict if whole else None
