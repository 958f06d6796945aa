"""Last two layers and every norm: what the first system of this name trained, whatever it said of the head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecheck.models.layer_names import base_names, decoder_layers, is_norm, layer_count, layer_of
from tunecheck.strategies.base import StrategyConfig

LAYERS = 2
"""Number of last layers that are trained whole."""


class AdapterLayers:
    """Train the last two layers and every norm of the model, the final one included. Nothing is added to the model."""

    trains: ClassVar[str] = "last two layers and every norm"
    sections: ClassVar[tuple[str, ...]] = ()

    def adapt(self, model: Any, run: StrategyConfig) -> Any:
        """Return the model with all else frozen. Raises Unsupported for a model of one layer."""
        model.requires_grad_(False)
        decoder_layers(model, at_least=LAYERS)[-LAYERS:].requires_grad_(True)
        for module in model.modules():
            if type(module).__name__.endswith("Norm"):  # LlamaRMSNorm, Qwen2RMSNorm, LayerNorm
                module.requires_grad_(True)
        return model

    def expected_trainable(self, run: StrategyConfig, weights: Sequence[str]) -> set[str]:
        """Return every tensor of the last two layers, and the tensors of every module named as a norm."""
        first = layer_count(weights, at_least=LAYERS) - LAYERS
        return {
            name
            for name in base_names(weights, run.model.architecture.tie_word_embeddings)
            if is_norm(name.split(".")[-2]) or ((number := layer_of(name)) is not None and number >= first)
        }
