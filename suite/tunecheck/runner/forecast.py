"""Predicted memory of a run at each step of the fallback chain, or in each variant that it is compared with."""

from tunecheck.config.schema import Run
from tunecheck.core.evidence import MemoryVariant
from tunecheck.memory import Prediction, predict
from tunecheck.runner.fallback_chain import every_fallback_step
from tunecheck.runner.variants import VARIANTS, variant


def forecast_fallback(run: Run, *, card: str | None = None) -> dict[str, Prediction]:
    """Return predictions for a card of this name: the run as configured, and every fallback step that uses a GPU.

    Whether or not the run names it. Each one that is not in the cache costs a simulation. Raises as `predict`.
    """
    trials = [trial for trial in every_fallback_step(run, "cuda") if trial.device == "cuda"]
    return {
        trial.step or MemoryVariant.AS_CONFIGURED.value: predict(variant(run, trial.changes), card=card)
        for trial in trials
    }


def forecast_variants(run: Run, *, card: str | None = None) -> dict[str, Prediction]:
    """Predictions for a card of this name: each variant that `probes.memory_order` trains, by the variant's name.

    Costs and raises as `forecast_fallback`.
    """
    return {name.value: predict(variant(run, changes), card=card) for name, changes in VARIANTS.items()}
