"""The model's safetensors files, read without the library that loads them. Imports torch; child process only."""

import json
import re
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

SAFETENSORS = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
"""The format's names of dtypes."""
CLASSIFIERS = "Classification", "QuestionAnswering", "MultipleChoice"
"""Ends of the names of transformers' models whose head no base has."""


class WeightFile:
    """The safetensors file or files of a model folder: names and tensors, read when asked for.

    Read by our own code: the length of a header in 8 bytes, the header in JSON, the tensors' bytes as it lists them
    (the format's own description). Whoever loads the model reads through the library, and what is wrong in that would
    be wrong on both sides.
    """

    def __init__(self, folder: Path) -> None:
        self._entries: dict[str, _Entry] = {}
        for path in sorted(folder.glob("*.safetensors")):
            self._entries |= _entries(path)
        self.names: tuple[str, ...] = tuple(sorted(self._entries))

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def tensor(self, name: str) -> torch.Tensor:
        """The whole tensor, on the CPU."""
        entry = self._entries[name]
        return entry.elements(0, prod(entry.shape)).view(entry.shape)

    def rows(self, name: str, first: int, last: int) -> torch.Tensor:
        """Some rows of a matrix, on the CPU."""
        entry = self._entries[name]
        columns = prod(entry.shape[1:])
        return entry.elements(first * columns, last * columns).view(last - first, *entry.shape[1:])

    def shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape, without reading it."""
        return self._entries[name].shape


@dataclass(frozen=True, slots=True)
class _Entry:
    """Where a tensor lies in its file."""

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    """Of its first byte in the file."""

    def elements(self, first: int, last: int) -> torch.Tensor:
        """These elements in the order of the file."""
        read = bytearray((last - first) * self.dtype.itemsize)
        with self.path.open("rb") as file:
            file.seek(self.start + first * self.dtype.itemsize)
            file.readinto(read)
        return torch.frombuffer(read, dtype=self.dtype)


def _entries(path: Path) -> dict[str, _Entry]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return {
        name: _Entry(path, SAFETENSORS[held["dtype"]], tuple(held["shape"]), 8 + length + held["data_offsets"][0])
        for name, held in header.items()
    }


def file_name(parameter: str) -> str:
    """A parameter's name in the weight file: peft's wrapping taken off."""
    name = re.sub(r"^(base_model\.model\.)+", "", parameter)
    return re.sub(r"\.(base_layer|token_adapter|original_module|modules_to_save\.[^.]+)(?=\.)", "", name)


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
            marks = len(named) < sum(1 for _ in inner.parameters())
            for name, p in named.items() if marks else ():
                drawn = not name.startswith(f"{inner.base_model_prefix}.")
                if not drawn and (bias := named.get(f"{name.removesuffix('weight')}bias")) is not None:
                    drawn = not bias.any()
                if drawn and p.ndim > 1 and ".base_layer." not in name:
                    found.add(f"{prefix}.{name}".lstrip("."))
    return frozenset(name for name in found if name.partition(".modules_to_save.")[0] not in learns)


def drawn_heads(model: Any, folder: Path) -> frozenset[str]:
    """Return the tensors of a classifier's head that no file of the base holds: a training must learn them."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    held = set(WeightFile(folder).names) if type(inner).__name__.endswith(CLASSIFIERS) else ()
    if not held:
        return frozenset()
    body = f"{inner.base_model_prefix}."
    return frozenset(
        name
        for name, _ in model.named_parameters()
        if not any(part in name for part in (".lora_", ".modules_to_save.", ".original_module.", ".base_layer."))
        and not (own := file_name(name)).startswith(body)
        and own not in held
    )
