"""Frozen lower half of the layers: what is near the input stays, what is near the output is trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecheck.models.layer_names import base_names, decoder_layers, layer_count, layer_of
from tunecheck.strategies.base import StrategyConfig


class FreezeLower:
    """Train the upper half of the layers, the embedding, the final norm and the head.

    Of an odd number of layers the middle one is trained.
    """

    trains: ClassVar[str] = "upper half of the layers, all outside them"
    sections: ClassVar[tuple[str, ...]] = ()

    def adapt(self, model: Any, run: StrategyConfig) -> Any:
        """Return the model with the lower half of its layers frozen. Raises Unsupported for a model of one layer."""
        layers = decoder_layers(model, at_least=2)
        model.requires_grad_(True)
        layers[: len(layers) // 2].requires_grad_(False)
        return model

    def expected_trainable(self, run: StrategyConfig, weights: Sequence[str]) -> set[str]:
        """Return the tensors outside the layers, and every tensor of a layer from the middle on."""
        first = layer_count(weights, at_least=2) // 2
        names = base_names(weights, run.model.architecture.tie_word_embeddings)
        return {name for name in names if (number := layer_of(name)) is None or number >= first}
