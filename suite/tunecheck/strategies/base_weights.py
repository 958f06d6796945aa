"""Strategies that train weights of the model's own: which of them. Nothing is added to the model."""

from collections.abc import Sequence
from typing import Any

from tunecheck.core.errors import Unsupported
from tunecheck.models.layer_names import (
    EMBEDDING,
    base_names,
    decoder_layers,
    head_name,
    is_norm,
    layer_count,
    layer_of,
)
from tunecheck.strategies.base import Strategy, StrategyConfig

LAST_LAYERS = 2
"""Number of last layers that `adapter_layers` and `last_layers_and_head` train whole."""


class Full(Strategy):
    """Train everything, in fp32 with autocast. A tied head is one tensor with the embedding."""

    trains = "everything"

    def adapt(self, model: Any, run: StrategyConfig) -> Any:
        """Return the model with every parameter trainable."""
        return model.requires_grad_(True)

    def expected_trainable(self, run: StrategyConfig, weights: Sequence[str]) -> set[str]:
        """Return every tensor of the weight file; a tied head has the embedding's name."""
        return set(base_names(weights, run.model.architecture.tie_word_embeddings))


class FreezeLower(Strategy):
    """Train the upper half of the layers, the embedding, the final norm and the head.

    Of an odd number of layers the middle one is trained.
    """

    trains = "upper half of the layers, all outside them"

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


class FreezeEmbeddings(Strategy):
    """Train every layer, the final norm and, where it is a matrix of its own, the head.

    A tied head is the embedding, and so is frozen with it.
    """

    trains = "everything but the embedding"

    def adapt(self, model: Any, run: StrategyConfig) -> Any:
        """Return the model with its input embedding frozen."""
        model.requires_grad_(True)
        model.get_input_embeddings().requires_grad_(False)
        return model

    def expected_trainable(self, run: StrategyConfig, weights: Sequence[str]) -> set[str]:
        """Return every tensor of the weight file but the embedding's."""
        names = base_names(weights, run.model.architecture.tie_word_embeddings)
        return {name for name in names if name != EMBEDDING}


class AdapterLayers(Strategy):
    """Train the last two layers and every norm of the model, the final one included."""

    trains = "last two layers and every norm"

    def adapt(self, model: Any, run: StrategyConfig) -> Any:
        """Return the model with all else frozen. Raises Unsupported for a model of one layer."""
        model.requires_grad_(False)
        decoder_layers(model, at_least=LAST_LAYERS)[-LAST_LAYERS:].requires_grad_(True)
        for module in model.modules():
            if type(module).__name__.endswith("Norm"):  # LlamaRMSNorm, Qwen2RMSNorm, LayerNorm
                module.requires_grad_(True)
        return model

    def expected_trainable(self, run: StrategyConfig, weights: Sequence[str]) -> set[str]:
        """Return every tensor of the last two layers, and the tensors of every module named as a norm."""
        first = layer_count(weights, at_least=LAST_LAYERS) - LAST_LAYERS
        return {
            name
            for name in base_names(weights, run.model.architecture.tie_word_embeddings)
            if is_norm(name.split(".")[-2]) or ((number := layer_of(name)) is not None and number >= first)
        }


class LastLayersAndHead(Strategy):
    """Train the last two layers and the head's matrix; the final norm, which lies between them, is frozen.

    A tied head is the embedding: one matrix with two uses. Training the head then trains the embedding too: inputs are
    embedded differently as well, the gradient flows through every frozen layer, and the matrix is by far the largest
    part of what is trained (on Qwen2-0.5B 136,134,656 of 165,959,424 parameters).
    """

    trains = "last two layers and the head"

    def adapt(self, model: Any, run: StrategyConfig) -> Any:
        """Return the model with all else frozen. Raises Unsupported for a model of one layer."""
        model.requires_grad_(False)
        decoder_layers(model, at_least=LAST_LAYERS)[-LAST_LAYERS:].requires_grad_(True)
        model.get_output_embeddings().requires_grad_(True)
        return model

    def expected_trainable(self, run: StrategyConfig, weights: Sequence[str]) -> set[str]:
        """Return every tensor of the last two layers, and the head by its name in the weight file."""
        tied = run.model.architecture.tie_word_embeddings
        first = layer_count(weights, at_least=LAST_LAYERS) - LAST_LAYERS
        upper = {name for name in weights if (number := layer_of(name)) is not None and number >= first}
        return upper | {name for name in base_names(weights, tied) if name == head_name(tied)}


class BitFit(Strategy):
    """Train every bias of the model (arXiv 2106.10199): in Qwen2 those of q, k and v; Llama has none."""

    trains = "the biases"

    def adapt(self, model: Any, run: StrategyConfig) -> Any:
        """Return the model with all but its biases frozen. Raises Unsupported for a model without biases."""
        model.requires_grad_(False)
        own = [dict(module.named_parameters(recurse=False)) for module in model.modules()]
        biases = [parameters["bias"] for parameters in own if "bias" in parameters]
        if not biases:
            raise _without_biases(run)
        for bias in biases:
            bias.requires_grad_(True)
        return model

    def expected_trainable(self, run: StrategyConfig, weights: Sequence[str]) -> set[str]:
        """Return every tensor of the weight file whose last part is "bias". Raises Unsupported when there is none."""
        biases = {name for name in weights if name.split(".")[-1] == "bias"}
        if not biases:
            raise _without_biases(run)
        return biases


def _without_biases(run: StrategyConfig) -> Unsupported:
    kind = run.model.architecture.model_type
    return Unsupported(
        f"strategy bitfit trains biases, and {run.model.name} (model_type {kind}) has none; use a model with biases, "
        "such as qwen2-0.5b, or strategy: adapter_layers or lora"
    )
