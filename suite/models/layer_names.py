"""Which decoder layer a tensor belongs to, told by the number in its name and never by a substring: 1 is not 10."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from suite.core.errors import Unsupported

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
"""As the weight files of every known architecture name them."""
_NUMBER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def layer_of(name: str) -> int | None:
    """The number of the decoder layer that this tensor lies in; None for embedding, last norm and head."""
    match = _NUMBER.search(name)
    return int(match[1]) if match else None


def layer_count(names: Iterable[str], at_least: int) -> int:
    """How many decoder layers these tensors make up. Raises Unsupported for a gap and for fewer than `at_least`."""
    numbers = {number for name in names if (number := layer_of(name)) is not None}
    missing = sorted(set(range(max(numbers, default=-1) + 1)) - numbers)
    if missing:
        raise Unsupported(
            f"the weight file has tensors of layer {max(numbers)} but none of {', '.join(map(str, missing))}: "
            "it is damaged or in part; fetch the model again"
        )
    enough(len(numbers), at_least)
    return len(numbers)


def enough(count: int, at_least: int) -> None:
    """The model has this many layers or more. Raises Unsupported."""
    if count < at_least:
        raise Unsupported(
            f"the model has {count} decoder layers, and this strategy needs {at_least} or more to tell those it trains "
            "from the others; take another model, or strategy: full"
        )


def decoder_layers(model: Any, at_least: int) -> Any:
    """The model's decoder layers in their order, as torch's ModuleList. Raises Unsupported for too few."""
    layers = model.get_decoder().layers
    enough(len(layers), at_least)
    return layers


def is_norm(part: str) -> bool:
    """Whether this part of a name is a normalisation's: input_layernorm, post_attention_layernorm, norm, q_norm."""
    return part.endswith("norm")


def head_name(tied: bool) -> str:
    """The head's matrix as the weight file has it: a tied one is the embedding, and has no other name."""
    return EMBEDDING if tied else HEAD


def base_names(names: Iterable[str], tied: bool) -> list[str]:
    """The weight file's tensors less a tied head, which some files hold a second time."""
    return [name for name in names if not (tied and name == HEAD)]
