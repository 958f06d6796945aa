"""GPU memory that a run needs: predicted before it, measured after it. Torch is not imported here."""

from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from tunecheck.config.schema import Run
from tunecheck.core.errors import SuiteError
from tunecheck.core.files import listed, read_json
from tunecheck.core.frozen import Frozen
from tunecheck.core.paths import evidence_folder, reports_folder
from tunecheck.history.store import Store, history_file
from tunecheck.memory.constants import share_of
from tunecheck.memory.prediction import Prediction, cached_prediction, predict

__all__ = ["MeasuredPeak", "Need", "Prediction", "measured_peaks", "need_of", "predict"]


class Need(Frozen):
    """GPU memory that a run needs, and how that is known."""

    bytes: int
    """Memory of the process: tensors, cuBLAS workspace and CUDA context."""
    known: str
    """How: "measured 2026-11-02", "predicted" with its date, or "stated by the run", in its own YAML."""


def need_of(run: Run, *, gpu_name: str | None, capability: str | None = None) -> Need | None:
    """Return the best known need: this run's measured on such a GPU, else stated by it, else predicted; else None.

    A prediction rests on assumed constants of the GPU, so it does not overrule what the run's YAML states. It is read
    from the cache, which `predict` fills, as `tunecheck estimate` does. `capability` is the GPU's, such as "8.9".
    """
    peak = None if gpu_name is None else measured_peaks(run.fingerprint).get(gpu_name)
    # a verdict records the peak of the run itself, not of the variants that it is compared with
    if peak is not None and not (run.probes.memory_order and (run.vram or 0) > peak.process_bytes):
        return Need(bytes=peak.process_bytes, known=f"measured {peak.measured_at}")
    if run.vram is not None:
        return Need(bytes=run.vram, known="stated by the run")
    simulated = run.evaluation.device != "cuda"  # a training on the CPU that evaluates on a GPU is not
    prediction = cached_prediction(run, card=gpu_name, capability=capability) if simulated else None
    return Need(bytes=prediction.process_bytes, known=f"predicted {prediction.predicted_at}") if prediction else None


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

    The history's peak includes the probes, a verdict's is the training's own; of the same session the larger counts.
    Only judged runs count: one that crashed may not have reached its peak. What cannot be read is skipped.
    """
    # not below a session: a fleet's has the verdicts of ten thousand nodes
    verdicts = [*sorted(evidence_folder().glob("**/verdict.json")), *listed(reports_folder(), "*/verdict.json")]
    found: list[tuple[str, int, str]] = []
    for path in verdicts:
        with suppress(OSError):  # it may be pruned meanwhile
            held = _peaks(path, path.stat().st_mtime_ns)
            found += [(started_at, peak_bytes, card) for started_at, peak_bytes, card, of in held if of == fingerprint]
    with suppress(SuiteError, OSError):
        found += Store(history_file()).peaks(fingerprint)
    return {
        card: MeasuredPeak(card=card, allocator_bytes=peak_bytes, measured_at=started_at[:10])
        for started_at, peak_bytes, card in sorted(found)
    }


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
