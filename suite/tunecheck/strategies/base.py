"""The part of a run that a strategy reads."""

from typing import Protocol

from tunecheck.models.description import Lora, Model


class StrategyConfig(Protocol):
    """Part of a run that determines which parameters are trained."""

    strategy: str
    model: Model
    lora: Lora | None
    """None where base weights are trained."""
