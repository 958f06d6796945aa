"""Comparison of a model folder with its YAML, from config.json and the weights' headers alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunecheck.assets.folder import damaged, read_json, weight_files
from tunecheck.core.errors import WeightsUnavailable
from tunecheck.core.reading import ANY_BYTES, open_file, parse_json
from tunecheck.core.typed import MISFITS, build
from tunecheck.models.description import Model

_SHAPE_KEYS = frozenset(
    {
        "model_type",
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "tie_word_embeddings",
    }
)
_REMEDY = (
    "correct the architecture and the parameters in the YAML (or by --set model.parameters=...), "
    "or point the source at the right model"
)
_LARGEST_HEADER_BYTES = 100_000_000
"""Limit of the safetensors library itself."""


class AnotherModel(WeightsUnavailable):
    """The folder's config.json or weights are not those of the model that the YAML describes."""


def check_fit(folder: Path, model: Model, origin: str, *, exact: bool) -> tuple[str, ...]:
    """Compare the folder's shapes and parameter count with the YAML; return notes on other settings that differ.

    `origin` names the folder's content in messages. With `exact` every key of the architecture must be there and agree.
    Raises AnotherModel with both values, and WeightsDamaged for a weight file whose header does not fit its size.
    """
    config = read_json(folder / "config.json")
    wrong: list[str] = []
    notes: list[str] = []
    for key, wanted in model.architecture.model_dump().items():
        found = _setting(config, key)
        if _same(found, wanted) or (found is None and not exact):
            continue
        text = f"{key} is {found} in {origin}, {wanted} in configs/models/{model.name}.yaml"
        (wrong if exact or key in _SHAPE_KEYS else notes).append(text)
    count = model.parameters if wrong else parameter_count(folder, tied=model.architecture.tie_word_embeddings)
    if count != model.parameters:
        wrong.append(f"{origin} holds {count} parameters, configs/models/{model.name}.yaml says {model.parameters}")
    if wrong:
        raise AnotherModel(
            f"{model.name}: the weights are of another model: {'; '.join(wrong)}. What to do: {_REMEDY}."
        )
    return tuple(notes)


def parameter_count(folder: Path, *, tied: bool) -> int:
    """Return the number of parameters in the folder's weight files, a tied head counted once. Raises WeightsDamaged."""
    sizes = [pair for name in weight_files(folder) for pair in _tensors(folder / name)]
    return sum(
        elements
        for name, elements in sizes
        # Old LLaMA files carry the rotary frequencies, which are a buffer.
        if not name.endswith("rotary_emb.inv_freq") and not (tied and name == "lm_head.weight")
    )


def _tensors(path: Path) -> Iterator[tuple[str, int]]:
    """Return name and element count of each tensor in a safetensors file whose header and size agree."""
    header, expected_bytes = _header(path)
    found_bytes = path.stat().st_size
    if found_bytes != expected_bytes:
        raise damaged(path, f"it has {found_bytes} bytes, its header says {expected_bytes}", _fetch_again(path))
    return ((name, math.prod(tensor.shape)) for name, tensor in header.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    """A tensor as a header describes it."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, ...]
    """First byte and the one after the last, from the end of the header."""

    def __post_init__(self) -> None:
        begin, end = self.data_offsets
        if not 0 <= begin <= end or min(self.shape, default=0) < 0:
            raise ValueError(f"a tensor of shape {self.shape} cannot lie from byte {begin} to {end}")


def _header(path: Path) -> tuple[dict[str, _Tensor], int]:
    """Return the tensors by name, and the size in bytes that the whole file must have."""
    with open_file(path, ANY_BYTES) as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(length) if length <= _LARGEST_HEADER_BYTES else b""
    try:
        entries = parse_json(text)
        entries.pop("__metadata__", None)
        header = {name: build(_Tensor, entry) for name, entry in entries.items()}
        return header, 8 + length + max((tensor.data_offsets[1] for tensor in header.values()), default=0)
    except MISFITS as error:
        size = path.stat().st_size
        raise damaged(path, f"its {size} bytes do not begin with a safetensors header", _fetch_again(path)) from error


def _fetch_again(path: Path) -> str:
    return f"delete it and copy or download it again into {path.parent}"


def _setting(config: dict[str, Any], key: str) -> Any:
    """Return a setting of config.json; transformers 5 keeps rope_theta in a section of its own."""
    nested = config.get("rope_parameters")
    return config.get(key, nested.get(key) if isinstance(nested, dict) else None)


def _same(found: Any, wanted: Any) -> bool:
    """Return whether both are equal, up to the rounding of a float that was stored in 32 bits."""
    if isinstance(wanted, float) and isinstance(found, int | float):
        return math.isclose(found, wanted, rel_tol=1e-6)
    return bool(found == wanted)
