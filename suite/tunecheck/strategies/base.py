"""Protocol of a strategy, and the part of a run that it reads."""

from collections.abc import Sequence
from typing import Any, Protocol

from tunecheck.models.adapters import Lora
from tunecheck.models.description import Model


class StrategyConfig(Protocol):
    """Part of a run that determines which parameters are trained."""

    @property
    def strategy(self) -> str:
        """Return the key in the table of strategies."""

    @property
    def model(self) -> Model:
        """Return the model with its architecture."""

    @property
    def lora(self) -> Lora | None:
        """Return the adapters; None where base weights are trained."""


class Strategy(Protocol):
    """Choice of the parameters that are trained.

    `adapt` finds them by the model's modules, `expected_trainable` by the names in the weight file: two independent
    ways to the same set, so that one can be checked against the other.
    """

    trains: str
    """Short description of what is trained, for a table."""
    sections: tuple[str, ...] = ()
    """Sections that a run of this strategy needs; it takes no other of `lora` and `quantization`."""

    def adapt(self, model: Any, run: StrategyConfig) -> Any:
        """Return the model with exactly the strategy's tensors requiring gradients. Raises Unsupported."""

    def expected_trainable(self, run: StrategyConfig, weights: Sequence[str]) -> set[str]:
        """Return the names of the trained tensors, from the weight file's tensor names. Raises Unsupported."""
