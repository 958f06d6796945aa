"""What a strategy is, and the part of a run that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from suite.models.adapters import Lora
from suite.models.description import Model


class StrategyConfig(Protocol):
    """The part of a run that determines which tensors learn."""

    @property
    def strategy(self) -> str:
        """Key in the table of strategies."""

    @property
    def model(self) -> Model:
        """The model with its architecture."""

    @property
    def lora(self) -> Lora | None:
        """The adapters; None where the base itself learns."""


class Strategy(Protocol):
    """Which tensors learn.

    `adapt` finds them by the model's modules, `expected_trainable` by the names in the weight file: two independent
    ways to the same set, so that one can be checked against the other.
    """

    trains: ClassVar[str]
    """What learns, in a few words for a table."""
    sections: ClassVar[tuple[str, ...]]
    """Sections that a run of this strategy needs; it takes no other of `lora` and `quantization`."""

    def adapt(self, model: Any, run: StrategyConfig) -> Any:
        """Return the model with exactly the strategy's tensors requiring gradients. Raises Unsupported."""

    def expected_trainable(self, run: StrategyConfig, weights: Sequence[str]) -> set[str]:
        """Enumerate the names it trains from the weight file's tensor names. Raises Unsupported."""
