"""Decoder layers by tensor name: matched by the number in the name, never by a substring, since 1 is not 10."""

import re
from collections.abc import Iterable
from typing import Any

from tunecheck.core.errors import Unsupported

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
"""Names in the weight files of every known architecture; a tied head is the embedding, and has no other name."""
_NUMBER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def layer_of(name: str) -> int | None:
    """Return the number of the decoder layer that this tensor is in; None for embedding, final norm and head."""
    return int(match[1]) if (match := _NUMBER.search(name)) else None


def layer_count(names: Iterable[str], at_least: int) -> int:
    """Return the number of decoder layers. Raises Unsupported for a gap and for fewer than `at_least`."""
    numbers = {number for name in names if (number := layer_of(name)) is not None}
    if missing := sorted(set(range(max(numbers, default=-1) + 1)) - numbers):
        why = f"the weight file has tensors of layer {max(numbers)} but none of {', '.join(map(str, missing))}"
        raise Unsupported(f"{why}: it is damaged or incomplete; fetch the model again")
    enough(len(numbers), at_least)
    return len(numbers)


def enough(count: int, at_least: int) -> None:
    if count < at_least:
        needed = f"this strategy needs {at_least} or more to tell those it trains from the others"
        raise Unsupported(f"the model has {count} decoder layers, and {needed}; use another model, or strategy: full")


def decoder_layers(model: Any, at_least: int) -> Any:
    """Return the model's decoder layers as torch's ModuleList. Raises Unsupported for too few."""
    layers = model.get_decoder().layers
    enough(len(layers), at_least)
    return layers


def decoder_of(model: Any) -> Any:
    """Return what every forward pass of a training calls: the decoder, or the model where it names none."""
    return model if hides_calls(model) else getattr(model, "get_decoder", lambda: None)() or model


def is_compiled(model: Any) -> bool:
    """Return whether this is torch.compile's module around another, into which no hook sees."""
    return "_orig_mod" in getattr(model, "_modules", ())


def as_written(model: Any) -> Any:
    return model._orig_mod if is_compiled(model) else model


def hides_calls(module: Any) -> bool:
    """Return whether torch.compile hides what happens within a call of this module from hooks."""
    own_forward = getattr(vars(module).get("forward"), "_torchdynamo_orig_callable", None)
    return is_compiled(module) or own_forward is not None or getattr(module, "_compiled_call_impl", None) is not None


def is_pretrained(module: Any) -> bool:
    """Return whether this is a model of transformers, by the name of its base class."""
    return any(kind.__name__ == "PreTrainedModel" for kind in type(module).__mro__)


def base_of(model: Any) -> Any:
    """Return the model inside of peft's adapters, and any other as it is."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def text_config(config: Any) -> Any:
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def attention_kernel(model: Any) -> str:
    return str(getattr(getattr(model, "config", None), "_attn_implementation", ""))


def stacked_layers(model: Any) -> list[Any]:
    """Return the modules of the list that is as long as the model is deep: layers, h, blocks; [] without one.

    A tower of pictures may be as deep, and stand before the decoder.
    """
    config = getattr(model, "config", None)
    depth = getattr(text_config(config), "num_hidden_layers", None)
    parts = [model] if getattr(config, "is_encoder_decoder", False) else [decoder_of(model), model]
    lists = (module for part in parts for module in part.modules() if type(module).__name__ == "ModuleList")
    return next((list(found) for found in lists if len(found) == depth), [])


def attention_of(layer: Any) -> Any | None:
    """Return the layer's attention, by the name of its class; None for a layer that mixes tokens in another way."""
    return next((module for module in layer.modules() if "attention" in type(module).__name__.lower()), None)
