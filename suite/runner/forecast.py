"""What a run would take on a card at each rung of the ladder, before it goes down any of them."""

from __future__ import annotations

from collections.abc import Callable

from suite.config.schema import Run
from suite.memory import Prediction, predict
from suite.runner.ladder import every_rung
from suite.runner.variants import variant

AS_ASKED = "as asked"


def forecast(run: Run, say: Callable[[str], None] = lambda line: None) -> dict[str, Prediction]:
    """The prediction of the run as asked, and of each rung that trains on a GPU, by the rung's name.

    Whether or not the run names the rung. Each one that is not in the cache costs a simulation. Raises as `predict`.
    """
    trials = [trial for trial in every_rung(run, "cuda") if trial.device == "cuda"]
    return {trial.rung or AS_ASKED: predict(variant(run, trial.changes), say) for trial in trials}
