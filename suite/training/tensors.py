"""Small tensor tools of the probes: digests, samples, and our own NF4 arithmetic. Imports torch; child process only."""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from math import prod
from operator import or_
from pathlib import Path
from typing import Any

import torch

NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""The 16 values of 4-bit NormalFloat (QLoRA, arXiv 2305.14314, appendix E)."""
FP4 = (0.0, 0.0052083333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
"""The 8 magnitudes of bitsandbytes' fp4, by their three low bits; the fourth bit is the sign."""
CODES = {"nf4": NF4, "fp4": (*FP4, *(-value for value in FP4))}
SAFETENSORS = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
"""The format's names of dtypes."""


def whole(tensor: Any) -> torch.Tensor:
    """The tensor itself; of a DTensor on one rank, as FSDP2 makes of parameters, the part here, which is all of it."""
    plain: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return plain


def sharded_as(parameter: Any, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as an optimizer must hold it beside this parameter: a DTensor where that is one."""
    if not hasattr(parameter, "to_local"):
        return tensor
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(tensor, parameter.device_mesh, parameter.placements)


PART = 1 << 22
"""Elements that are looked at together. A copy of a whole embedding in 64 bit would take gigabytes of a card that the
training fills, and have it run out of memory for the suite's sake."""

Digest = tuple[object, ...]


def digest(tensor: torch.Tensor) -> Digest:
    """A digest of the tensor's bytes, shape and dtype, computed on its device. Any single changed word changes it.

    sha256 on the CPU (1.5 GB/s). On a GPU two wrapping sums over 64-bit words, one plain and one weighted by position
    so that reordering shows too: sha256 would first copy everything to the CPU.
    """
    data = whole(tensor).detach().contiguous().flatten().view(torch.uint8)
    kind = (tuple(tensor.shape), tensor.dtype)
    if data.device.type == "cpu":
        return (*kind, hashlib.sha256(data.numpy().data).digest())
    return (*kind, *word_sums(data))


def word_sums(data: torch.Tensor) -> tuple[int, int, bytes]:
    """Two wrapping sums over the 64-bit words of these bytes, and the bytes that are left over."""
    full = data.numel() // 8 * 8
    words = data[:full].view(torch.int64)
    plain = torch.zeros((), dtype=torch.int64, device=words.device)
    weighted = plain.clone()
    for first in range(0, words.numel(), PART):
        part = words[first : first + PART]
        plain += part.sum()
        weights = torch.arange(2 * first + 1, 2 * (first + part.numel()) + 1, 2, device=words.device)
        weighted += (part * weights).sum()
    return int(plain), int(weighted), bytes(data[full:].tolist())


def norm(tensor: torch.Tensor) -> float:
    """The tensor's norm, its squares summed in float64."""
    squares = torch.zeros((), dtype=torch.float64, device=tensor.device)
    for part in torch.split(tensor.detach().flatten(), PART):
        squares += part.double().square().sum()
    return float(squares.sqrt())


SAMPLED = 1 << 16
FRACTION_BITS = 23


def sample(tensor: torch.Tensor) -> torch.Tensor:
    """About 65,536 elements at most, evenly spread; a copy."""
    return whole(tensor).detach().flatten()[:: max(1, tensor.numel() // SAMPLED)].clone()


def sampled_rows(matrix: torch.Tensor) -> torch.Tensor:
    """The row of each element that `sample` takes of this matrix."""
    stride = max(1, matrix.numel() // SAMPLED)
    return torch.arange(0, matrix.numel(), stride, device=matrix.device) // matrix.shape[1]


def significant_digits(tensor: torch.Tensor) -> int:
    """The most binary digits that an element of a sample needs: 24 in fp32, 11 once it was fp16, 8 once it was bf16."""
    bits = sample(tensor)[::16].float().view(torch.int32).tolist()
    fractions: int = reduce(or_, bits, 1 << FRACTION_BITS)
    return FRACTION_BITS + 2 - (fractions & -fractions).bit_length()


def is_packed(parameter: Any) -> bool:
    """True for a 4-bit parameter of bitsandbytes that has been quantised."""
    return getattr(parameter, "quant_state", None) is not None


def statistics(parameter: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a packed parameter's quantisation state, by name."""
    state = parameter.quant_state
    yield "absmax", state.absmax
    if state.nested:
        yield "absmax.absmax", state.state2.absmax
        yield "absmax.code", state.state2.code
        yield "absmax.offset", state.offset


def unpack(parameter: Any, first: int, last: int) -> torch.Tensor:
    """Elements first to last of a packed weight as fp32, by our own arithmetic; both multiples of the block size."""
    state = parameter.quant_state
    block = state.blocksize
    packed = parameter.detach().view(torch.uint8).flatten()[first // 2 : last // 2]
    nibbles = torch.stack([packed >> 4, packed & 15], dim=1).flatten().long()
    scales = state.absmax[first // block : last // block]
    if state.nested:
        blocks = torch.arange(first // block, last // block, device=packed.device)
        outer = state.state2.absmax[blocks // state.state2.blocksize]
        scales = state.state2.code[scales.long()] * outer + state.offset
    code = torch.tensor(CODES[state.quant_type], device=packed.device)
    unpacked: torch.Tensor = code[nibbles].view(-1, block) * scales.float()[:, None]
    return unpacked.flatten()


def live_tensors(device_type: str) -> tuple[int, int]:
    """Number and bytes of the distinct storages that Python can reach on this kind of device."""
    storages: dict[int, int] = {}
    for thing in gc.get_objects():  # less those that were frozen before the training began
        if issubclass(type(thing), torch.Tensor) and thing.device.type == device_type:
            if hasattr(thing, "to_local"):  # a DTensor has no storage of its own; its part is found by itself
                continue
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return len(storages), sum(storages.values())


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
    return parameter.removeprefix("base_model.model.").replace(".base_layer.", ".")
