"""Protocol of a strategy, and the part of a run that it reads."""

from collections.abc import Sequence
from typing import Any, Protocol

from tunecheck.models.description import Lora, Model


class StrategyConfig(Protocol):
    """Part of a run that determines which parameters are trained."""

    strategy: str
    model: Model
    lora: Lora | None
    """None where base weights are trained."""


class Strategy(Protocol):
    """Choice of the parameters that are trained: by modules and by names of tensors, so that one checks the other."""

    trains: str
    """Short description of what is trained, for a table."""
    sections: tuple[str, ...] = ()
    """Sections that a run of this strategy needs; it takes no other of `lora` and `quantization`."""

    def adapt(self, model: Any, run: StrategyConfig) -> Any:
        """Return the model with exactly the strategy's tensors requiring gradients. Raises Unsupported."""

    def expected_trainable(self, run: StrategyConfig, weights: Sequence[str]) -> set[str]:
        """Return the names of the trained tensors, from the weight file's tensor names. Raises Unsupported."""
