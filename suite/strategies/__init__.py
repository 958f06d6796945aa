"""Training strategies: which tensors learn. One file each; a strategy changes the model, never the loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from suite.strategies.full import Full
from suite.strategies.lora import LoraAdapters

if TYPE_CHECKING:
    from suite.config.schema import Run


class Strategy(Protocol):
    """What the trainer needs to know."""

    def adapt(self, model: Any, run: Run) -> Any:
        """The model to train: exactly the strategy's tensors require gradients. Raises Unsupported."""

    def expected_trainable(self, run: Run, weights: Sequence[str]) -> set[str]:
        """The exact names it trains, enumerated from the weight file's tensor names and the configuration."""


STRATEGIES: dict[str, Strategy] = {
    "full": Full(),
    "lora": LoraAdapters(),
    "qlora": LoraAdapters(),  # LoRA on a quantised base: the run's quantization section does the rest
}
