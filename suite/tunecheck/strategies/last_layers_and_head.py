"""Last two layers and the head, literally.

A tied head is the embedding: one matrix with two uses. Training the head then trains the embedding too: inputs are
embedded differently as well, the gradient flows through every frozen layer, and the matrix is by far the largest part
of what is trained (on Qwen2-0.5B 136,134,656 of 165,959,424 parameters).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecheck.models.layer_names import base_names, decoder_layers, head_name, layer_count, layer_of
from tunecheck.strategies.base import StrategyConfig

LAYERS = 2
"""Number of last layers that are trained."""


class LastLayersAndHead:
    """Train the last two layers and the head's matrix; the final norm, which lies between them, is frozen."""

    trains: ClassVar[str] = "last two layers and the head"
    sections: ClassVar[tuple[str, ...]] = ()

    def adapt(self, model: Any, run: StrategyConfig) -> Any:
        """Return the model with all else frozen. Raises Unsupported for a model of one layer."""
        model.requires_grad_(False)
        decoder_layers(model, at_least=LAYERS)[-LAYERS:].requires_grad_(True)
        model.get_output_embeddings().requires_grad_(True)
        return model

    def expected_trainable(self, run: StrategyConfig, weights: Sequence[str]) -> set[str]:
        """Return every tensor of the last two layers, and the head by its name in the weight file."""
        tied = run.model.architecture.tie_word_embeddings
        first = layer_count(weights, at_least=LAYERS) - LAYERS
        upper = {name for name in weights if (number := layer_of(name)) is not None and number >= first}
        return upper | {name for name in base_names(weights, tied) if name == head_name(tied)}
