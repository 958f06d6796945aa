"""What a run would take on a card at each rung of the ladder, or in each variant that its memory is compared with."""

from __future__ import annotations

from collections.abc import Callable

from suite.config.schema import Run
from suite.core.evidence import MemoryVariant
from suite.memory import Prediction, predict
from suite.runner.fallback_chain import every_rung
from suite.runner.variants import VARIANTS, variant


def forecast_rungs(
    run: Run, say: Callable[[str], None] = lambda line: None, *, card: str | None = None
) -> dict[str, Prediction]:
    """Predictions for a card of this name: the run as asked, and each rung that trains on a GPU, by the rung's name.

    Whether or not the run names the rung. Each one that is not in the cache costs a simulation. Raises as `predict`.
    """
    trials = [trial for trial in every_rung(run, "cuda") if trial.device == "cuda"]
    return {
        trial.rung or MemoryVariant.AS_CONFIGURED.value: predict(variant(run, trial.changes), say, card=card)
        for trial in trials
    }


def forecast_variants(
    run: Run, say: Callable[[str], None] = lambda line: None, *, card: str | None = None
) -> dict[str, Prediction]:
    """Predictions for a card of this name: each variant that `probes.memory_order` trains, by the variant's name.

    Costs and raises as `forecast_rungs`.
    """
    return {name.value: predict(variant(run, changes), say, card=card) for name, changes in VARIANTS.items()}
