"""Strategies that train weights of the model's own: which of them. Nothing is added to the model."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tunecheck.core.errors import Unsupported
from tunecheck.models.description import StrategyConfig
from tunecheck.models.layer_names import EMBEDDING, HEAD, decoder_layers, layer_count, layer_of

LAST_LAYERS = 2
"""Number of last layers that `adapter_layers` and `last_layers_and_head` train whole."""


@dataclass(frozen=True)
class BaseWeights:
    """Train weights of the model's own. A tied head is the embedding: one matrix with two uses."""

    trains: str
    """Short description of what is trained, for a table."""
    parts: Callable[[Any], Iterable[Any]]
    """(model) -> modules and parameters that learn. Raises Unsupported."""
    names: Callable[[list[str], bool], Iterable[str]]
    """(tensors of the weight file, whether the head is tied) -> those that learn. Raises Unsupported."""
    sections: tuple[str, ...] = ()
    """Sections that a run of this strategy needs; it takes no other of `lora` and `quantization`."""

    def adapt(self, model: Any, run: StrategyConfig) -> Any:
        """Return the model with all else frozen. Raises Unsupported."""
        model.requires_grad_(False)
        for part in self._held(self.parts(model), run):
            part.requires_grad_(True)
        return model

    def expected_trainable(self, run: StrategyConfig, weights: Sequence[str]) -> set[str]:
        """Return the tensors of the weight file that learn. Raises Unsupported."""
        tied = run.model.architecture.tie_word_embeddings
        own = [name for name in weights if not (tied and name == HEAD)]  # which some files hold a second time
        return set(self._held(self.names(own, tied), run))

    def _held(self, found: Iterable[Any], run: StrategyConfig) -> list[Any]:
        if not (held := list(found)):
            model = f"{run.model.name} (model_type {run.model.architecture.model_type})"
            way_out = "use a model that has them, such as qwen2-0.5b, or strategy: adapter_layers or lora"
            raise Unsupported(f"strategy {run.strategy} trains {self.trains}, and {model} has none; {way_out}")
        return held


def _upper_half(model: Any) -> list[Any]:
    layers = decoder_layers(model, at_least=2)
    lower = {id(parameter) for parameter in layers[: len(layers) // 2].parameters()}
    return [parameter for parameter in model.parameters() if id(parameter) not in lower]


def _from_layer(names: list[str], first: int) -> list[str]:
    return [name for name in names if (number := layer_of(name)) is not None and number >= first]


def _last_layers(names: list[str]) -> list[str]:
    return _from_layer(names, layer_count(names, at_least=LAST_LAYERS) - LAST_LAYERS)


def _last_modules(model: Any) -> Any:
    return decoder_layers(model, at_least=LAST_LAYERS)[-LAST_LAYERS:]


FULL = BaseWeights(trains="everything", parts=lambda model: [model], names=lambda names, tied: names)
FREEZE_LOWER = BaseWeights(  # of an odd number of layers the middle one is trained
    trains="upper half of the layers, all outside them",
    parts=_upper_half,
    names=lambda names, tied: [
        *(name for name in names if layer_of(name) is None),
        *_from_layer(names, layer_count(names, at_least=2) // 2),
    ],
)
FREEZE_EMBEDDINGS = BaseWeights(
    trains="everything but the embedding",
    parts=lambda model: [p for p in model.parameters() if p is not model.get_input_embeddings().weight],
    names=lambda names, tied: [name for name in names if name != EMBEDDING],
)
ADAPTER_LAYERS = BaseWeights(
    trains="last two layers and every norm",
    parts=lambda model: [  # LlamaRMSNorm, Qwen2RMSNorm, LayerNorm
        *_last_modules(model),
        *(module for module in model.modules() if type(module).__name__.endswith("Norm")),
    ],
    names=lambda names, tied: [*_last_layers(names), *(name for name in names if name.split(".")[-2].endswith("norm"))],
)
# Training a tied head trains the embedding too: inputs are embedded differently as well, the gradient flows through
# every frozen layer, and the matrix is by far the largest part (on Qwen2-0.5B 136,134,656 of 165,959,424 parameters).
LAST_LAYERS_AND_HEAD = BaseWeights(
    trains="last two layers and the head",
    parts=lambda model: [*_last_modules(model), model.get_output_embeddings()],
    names=lambda names, tied: [*_last_layers(names), *({EMBEDDING if tied else HEAD} & {*names})],
)
BITFIT = BaseWeights(  # arXiv 2106.10199: in Qwen2 those of q, k and v; Llama has none
    trains="the biases",
    parts=lambda model: [parameter for name, parameter in model.named_parameters() if name.split(".")[-1] == "bias"],
    names=lambda names, tied: [name for name in names if name.split(".")[-1] == "bias"],
)
