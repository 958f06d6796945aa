"""The last two layers and the head, taken at its word.

A tied head is the embedding: one matrix with two uses. To train the head is then to train the embedding too: words are
read differently as well, the gradient goes down through every frozen layer, and the matrix is by far the most of what
learns (on Qwen2-0.5B 136,134,656 of 165,959,424 parameters).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from suite.models.layer_names import base_names, decoder_layers, head_name, layer_count, layer_of
from suite.strategies.base import StrategyConfig

LAYERS = 2
"""How many of the last layers learn; how many there are is read from the model."""


class LastLayersAndHead:
    """Trains the last two layers and the head's matrix; the last norm, which lies between them, is frozen."""

    trains: ClassVar[str] = "last two layers and the head"
    sections: ClassVar[tuple[str, ...]] = ()

    def adapt(self, model: Any, run: StrategyConfig) -> Any:
        """The model itself, the rest frozen. Raises Unsupported for a model of one layer."""
        model.requires_grad_(False)
        decoder_layers(model, at_least=LAYERS)[-LAYERS:].requires_grad_(True)
        model.get_output_embeddings().requires_grad_(True)
        return model

    def expected_trainable(self, run: StrategyConfig, weights: Sequence[str]) -> set[str]:
        """Every tensor of the last two layers, and the head under the name that the weight file has for it."""
        tied = run.model.architecture.tie_word_embeddings
        first = layer_count(weights, at_least=LAYERS) - LAYERS
        upper = {name for name in weights if (number := layer_of(name)) is not None and number >= first}
        return upper | {name for name in base_names(weights, tied) if name == head_name(tied)}
