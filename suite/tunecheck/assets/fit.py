"""Comparison of a model folder with its YAML, from config.json and the weights' headers alone."""

import math
from pathlib import Path
from typing import Any

from tunecheck.assets.folder import damaged, read_json, weight_files
from tunecheck.core.errors import WeightsUnavailable
from tunecheck.core.reading import ANY_BYTES, open_file
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
    sizes = [pair for name in weight_files(folder) for pair in _element_counts(folder / name).items()]
    return sum(
        elements
        for name, elements in sizes
        # Old LLaMA files carry the rotary frequencies, which are a buffer.
        if not name.endswith("rotary_emb.inv_freq") and not (tied and name == "lm_head.weight")
    )


def _element_counts(path: Path) -> dict[str, int]:
    """Return each tensor's number of elements; the library checks the header against the file's size."""
    from safetensors import SafetensorError, safe_open

    open_file(path, ANY_BYTES).close()  # the library would wait at a FIFO
    try:
        with safe_open(path, framework="numpy") as file:
            names = file.keys()  # a safe_open is no mapping
            return {name: math.prod(file.get_slice(name).get_shape()) for name in names}
    except SafetensorError as error:
        problem = f"its {path.stat().st_size} bytes are no whole safetensors file ({error})"
        remedy = f"delete it and copy or download it again into {path.parent}"
        raise damaged(path, problem, remedy) from error


def _setting(config: dict[str, Any], key: str) -> Any:
    """Return a setting of config.json; transformers 5 keeps rope_theta in a section of its own."""
    nested = config.get("rope_parameters")
    return config.get(key, nested.get(key) if isinstance(nested, dict) else None)


def _same(found: Any, wanted: Any) -> bool:
    """Return whether both are equal, up to the rounding of a float that was stored in 32 bits."""
    if isinstance(wanted, float) and isinstance(found, int | float):
        return math.isclose(found, wanted, rel_tol=1e-6)
    return bool(found == wanted)
