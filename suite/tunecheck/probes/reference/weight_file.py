"""The model's safetensors files, read without the library that loads models. Imports torch; child process only."""

import re
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open

from tunecheck.models.layer_names import base_of
from tunecheck.probes.reference.measures import evenly

CLASSIFIERS = "Classification", "QuestionAnswering", "MultipleChoice"
"""Ends of the names of transformers' models whose head no base has."""

ALIKE, ALIKE_BY = 0.5, 64
"""Cosine of two matrices that share a start, and the elements that tell them from two that are drawn."""
FEWEST_SHARED = 4
"""Matrices of a model and its file by which the two are compared."""


class WeightFile:
    """The safetensors of a model folder, read to the CPU when asked for; open for short, as a script may write them."""

    def __init__(self, folder: Path) -> None:
        files: list[Any] = [safe_open(path, "pt") for path in sorted(folder.glob("*.safetensors"))]
        self._held = {name: (file, file.get_slice(name)) for file in files for name in file.keys()}  # noqa: SIM118
        self.names: tuple[str, ...] = tuple(sorted(self._held))

    def __contains__(self, name: str) -> bool:
        return name in self._held

    def shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape, without reading it."""
        return tuple(self._held[name][1].get_shape())

    def tensor(self, name: str) -> torch.Tensor:
        return cast(torch.Tensor, self._held[name][0].get_tensor(name))

    def rows(self, name: str, first: int, last: int) -> torch.Tensor:
        return cast(torch.Tensor, self._held[name][1][first:last])


def file_name(parameter: str) -> str:
    """A parameter's name in the weight file: peft's wrapping taken off."""
    name = re.sub(r"^(base_model\.model\.)+", "", parameter)
    return re.sub(r"\.(base_layer|token_adapter|original_module|modules_to_save\.[^.]+)(?=\.)", "", name)


def layer_number(name: str) -> str:
    """Return the first number in the name, which no loader changes; "" without one."""
    return next((part for part in name.split(".") if part.isdigit()), "")


def is_drawn(model: Any) -> bool:
    """Return whether the weights of all of several norms are 1, or all 0, as no training leaves them."""
    norms = [m.weight for m in model.modules() if "norm" in type(m).__name__.lower() and hasattr(m, "weight")]
    learnt = [weight.detach() for weight in norms if isinstance(weight, torch.nn.Parameter) and not weight.is_meta]
    return len(learnt) > 1 and any(all(bool((weight == value).all()) for weight in learnt) for value in (0, 1))


def drawn_anew(model: Any, folder: Path) -> int:
    """Return how many matrices a model as it was built has of the file's; 0 where any holds its values.

    And where they are few, or others in number or size: the configuration then began another model. What was trained
    on, merged or quantised since, is still like the file.
    """
    if not is_drawn(model):
        return 0
    weights, prefix = WeightFile(folder), f"{model.base_model_prefix}."
    shared = dict[str, Any]()
    for name, p in model.named_parameters():
        own = file_name(name)
        if p.is_floating_point() and p.ndim == 2 and p.numel() >= ALIKE_BY and not p.is_meta:
            shared |= {held: p for held in (own, prefix + own, own.removeprefix(prefix)) if held in weights}
    same = {name: p for name, p in shared.items() if weights.shape(name) == tuple(p.shape)}
    as_deep = {"", *map(layer_number, shared)} == {"", *map(layer_number, weights.names)}
    if len(same) < FEWEST_SHARED or any(map(layer_number, shared.keys() - same.keys())) or not as_deep:
        return 0
    looked_at = [*same.items()][evenly(len(same), FEWEST_SHARED)]
    return 0 if any(_alike(p.detach(), weights, name) for name, p in looked_at) else len(same)


def _alike(parameter: torch.Tensor, weights: WeightFile, name: str) -> bool:
    """Return whether rows of the matrix correlate with the file's, as two that are drawn do not."""
    rows, columns = parameter.shape
    count = min(rows, -(-4 * ALIKE_BY // columns))
    first = (rows - count) // 2
    pair = parameter[first : first + count], weights.rows(name, first, first + count)
    own, held = (part.to("cpu", torch.float32).flatten() for part in pair)
    return float(torch.nn.functional.cosine_similarity(own, held, dim=0)) > ALIKE


def unmarked_heads(model: Any) -> frozenset[str]:
    """Return the matrices of classifiers' heads that transformers has not loaded: since version 5 it marks all others.

    With those of a body whose bias is 0, as a pooler that the file lacks: a copied body has no marks, but its values.
    Without those that have adapters, and those of which peft has made a copy that learns.
    """
    learns = {name.partition(".modules_to_save.")[0] for name, p in model.named_parameters() if p.requires_grad}
    found = set[str]()
    for prefix, inner in model.named_modules():
        if type(inner).__name__.endswith(CLASSIFIERS) and hasattr(inner, "base_model_prefix"):
            named = {name: p for name, p in inner.named_parameters() if "_is_hf_initialized" not in vars(p)}
            for name, p in named.items() if len(named) < sum(1 for _ in inner.parameters()) else ():
                drawn = not name.startswith(f"{inner.base_model_prefix}.")
                if not drawn and (bias := named.get(f"{name.removesuffix('weight')}bias")) is not None:
                    drawn = not bias.any()
                if drawn and p.ndim > 1 and ".base_layer." not in name:
                    found.add(f"{prefix}.{name}".lstrip("."))
    return frozenset(name for name in found if name.partition(".modules_to_save.")[0] not in learns)


def drawn_heads(model: Any, folder: Path) -> frozenset[str]:
    """Return the tensors of a classifier's head that no file of the base holds: a training must learn them."""
    inner = base_of(model)
    if not (held := set(WeightFile(folder).names) if type(inner).__name__.endswith(CLASSIFIERS) else ()):
        return frozenset()
    body = f"{inner.base_model_prefix}."
    adapters = ".lora_", ".modules_to_save.", ".original_module.", ".base_layer."
    plain = (name for name, _ in model.named_parameters() if not any(part in name for part in adapters))
    in_file = {name: file_name(name) for name in plain}
    return frozenset(name for name, own in in_file.items() if not own.startswith(body) and own not in held)
