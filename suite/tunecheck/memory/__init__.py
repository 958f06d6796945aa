"""GPU memory that a run needs: predicted before it, measured after it. Torch is not imported here."""

from typing import TYPE_CHECKING, Literal

from tunecheck.core.frozen import Frozen
from tunecheck.memory.measured import measured_peaks
from tunecheck.memory.prediction import Prediction, cached_prediction, predict

if TYPE_CHECKING:
    from tunecheck.config.schema import Run

__all__ = ["Need", "Prediction", "need_of", "predict"]


class Need(Frozen):
    """GPU memory that a run needs, and how that is known."""

    bytes: int
    """Memory of the process: tensors, cuBLAS workspace and CUDA context."""
    source: Literal["measured", "predicted", "stated"]
    when: str
    """ISO date of the measurement or prediction; empty where the run's own YAML states it."""


def need_of(run: "Run", *, gpu_name: str | None, capability: str | None = None) -> Need | None:
    """Return the best known need: this run's measured on such a GPU, else stated by it, else predicted; else None.

    A prediction rests on assumed constants of the GPU, so it does not overrule what the run's YAML states. Nothing is
    simulated here: `predict` fills the cache, as `tunecheck estimate` does. `capability` is the GPU's, such as "8.9".
    """
    peak = None if gpu_name is None else measured_peaks(run.fingerprint).get(gpu_name)
    # a verdict records the peak of the run itself, not of the variants that it is compared with
    if peak is not None and not (run.probes.memory_order and (run.vram or 0) > peak.process_bytes):
        return Need(bytes=peak.process_bytes, source="measured", when=peak.measured_at)
    if run.vram is not None:
        return Need(bytes=run.vram, source="stated", when="")
    simulated = run.evaluation.device != "cuda"  # a training on the CPU that evaluates on a GPU is not
    prediction = cached_prediction(run, card=gpu_name, capability=capability) if simulated else None
    if prediction is not None:
        return Need(bytes=prediction.process_bytes, source="predicted", when=prediction.predicted_at)
    return None
