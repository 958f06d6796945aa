"""Training strategies: which tensors learn. One file each; a strategy changes the model, never the loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from suite.strategies.adapter_layers import AdapterLayers
from suite.strategies.bitfit import BitFit
from suite.strategies.freeze_embeddings import FreezeEmbeddings
from suite.strategies.freeze_lower import FreezeLower
from suite.strategies.full import Full
from suite.strategies.last_layers_and_head import LastLayersAndHead
from suite.strategies.lora import LoraAdapters

if TYPE_CHECKING:
    from suite.config.schema import Run


class Strategy(Protocol):
    """What the trainer needs to know.

    `adapt` finds its tensors by the model's modules, `expected_trainable` by the names in the weight file: two ways to
    the same set, so that the one can be held against the other.
    """

    trains: str
    """What learns, in a few words for a table."""

    def adapt(self, model: Any, run: Run) -> Any:
        """The model to train: exactly the strategy's tensors require gradients. Raises Unsupported."""

    def expected_trainable(self, run: Run, weights: Sequence[str]) -> set[str]:
        """The exact names it trains, enumerated from the weight file's tensor names and the configuration.

        Raises Unsupported.
        """


STRATEGIES: dict[str, Strategy] = {
    "full": Full(),
    "freeze_lower": FreezeLower(),
    "freeze_embeddings": FreezeEmbeddings(),
    "adapter_layers": AdapterLayers(),
    "last_layers_and_head": LastLayersAndHead(),
    "bitfit": BitFit(),
    "lora": LoraAdapters(),
    "qlora": LoraAdapters(),  # LoRA on a quantised base: the run's quantization section does the rest
}
