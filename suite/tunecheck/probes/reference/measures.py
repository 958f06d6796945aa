"""Digests, norms, samples and counts of tensors, and the worst of several errors. Imports torch; child process only."""

import gc
import hashlib
import math
import sys
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import reduce
from operator import or_
from typing import Any, TypeVar

import numpy
import torch
import torch.distributed as distributed
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from tunecheck.core.check import or_infinite
from tunecheck.training.tensors import whole

K = TypeVar("K", bound=Hashable)

PART = 1 << 22
"""Elements that are looked at together. A copy of a whole embedding in 64 bit would take gigabytes of a card that the
training fills, and have it run out of memory for the suite's sake."""

SKETCHED = 64
"""Sums of a sketch: the norm that they tell is off by a share of about (2 / 64)^0.5."""
Digest = tuple[object, ...]


def digest(tensor: torch.Tensor) -> Digest:
    """A digest of the tensor's bytes, shape and dtype, computed on its device. Any single changed word changes it."""
    # On a GPU two wrapping sums, one weighted by position so that reordering shows: sha256 would copy everything first
    data = whole(tensor).detach().contiguous().flatten().view(torch.uint8)
    kind = (tuple(tensor.shape), tensor.dtype)
    if data.device.type == "cpu":
        # after tensor.numpy() a storage can no longer be resized, as FSDP2 does when it frees what it has gathered
        return (*kind, hashlib.sha256(numpy.from_dlpack(data).data).digest())
    return (*kind, *word_sums(data))


def digests(tensors: Iterable[torch.Tensor]) -> list[Digest]:
    """The digest of each; of plain tensors on the CPU in as many threads as torch has: hashing frees Python's lock."""
    every = list(tensors)
    if all(tensor.device.type == "cpu" and not hasattr(tensor, "to_local") for tensor in every):
        # the interpreter may end before the tenth step, and starts no thread any more
        with suppress(RuntimeError), ThreadPoolExecutor(torch.get_num_threads()) as pool:
            return list(pool.map(digest, every))
    return list(map(digest, every))


def sketch(tensors: Iterable[torch.Tensor]) -> tuple[float, ...]:
    """Return 64 sums of all elements with random signs, alike everywhere: linear, and norms are kept within a fifth."""
    sums, draw = torch.zeros(SKETCHED, dtype=torch.float64), torch.Generator().manual_seed(0)
    for tensor in tensors:
        flat = tensor.detach().flatten().float().cpu()
        flat = torch.nn.functional.pad(flat, (0, -len(flat) % SKETCHED)).view(-1, SKETCHED)
        sums += (flat * (2 * torch.randint(2, flat.shape, generator=draw, dtype=torch.int8) - 1)).sum(0)
    return tuple(sums.tolist())


def hex_digest(value: object) -> str:
    """Return a digest of the value's spelling, 16 hex digits, for a trace."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def random_digest(device: torch.device) -> str:
    """Return a digest of the device's random state, 12 hex digits."""
    state = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
    return hashlib.sha256(state.numpy().tobytes()).hexdigest()[:12]


def word_sums(data: torch.Tensor) -> tuple[int, int, bytes]:
    """Two wrapping sums over the 64-bit words of these bytes, and the bytes that are left over."""
    full = data.numel() // 8 * 8
    plain = torch.zeros((), dtype=torch.int64, device=data.device)
    weighted = plain.clone()
    aligned = data.storage_offset() % 8 == 0  # as parts of a flat parameter need not be (FSDP1, DeepSpeed)
    for first in range(0, full // 8, PART):
        part = data[8 * first : min(full, 8 * (first + PART))]
        part = (part if aligned else part.clone()).view(torch.int64)
        plain += part.sum()
        weighted += (part * torch.arange(2 * first + 1, 2 * (first + part.numel()) + 1, 2, device=data.device)).sum()
    return int(plain), int(weighted), bytes(data[full:].tolist())


def norm(tensor: torch.Tensor) -> float:
    """The tensor's norm, its squares summed in float64."""
    squares = torch.zeros((), dtype=torch.float64, device=tensor.device)
    for part in torch.split(whole(tensor).detach().flatten(), PART):
        squares += part.double().square().sum()
    return float(squares.sqrt())


SAMPLED = 1 << 16
FRACTION_BITS = 23


def evenly(count: int, some: int) -> slice:
    """Return which of so many are looked at where `some` are enough: all of few, less than twice that of many."""
    return slice(None, None, max(1, count // some))


def sample(tensor: torch.Tensor) -> torch.Tensor:
    """About 65,536 elements at most, evenly spread; a copy."""
    return whole(tensor).detach().flatten()[evenly(tensor.numel(), SAMPLED)].clone()


def value_of(tensor: torch.Tensor) -> str:
    """Return a digest of the shape and a sample of the elements."""
    elements = sample(tensor).cpu().contiguous().view(torch.uint8).numpy()
    return f"{tuple(tensor.shape)} {hashlib.sha256(elements.data).hexdigest()}"


def sampled_places(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The index along the first dimension, and that within it, of each element that `sample` takes of this tensor."""
    width = tensor.numel() // (len(tensor) if tensor.ndim else 1)
    places = torch.arange(0, tensor.numel(), evenly(tensor.numel(), SAMPLED).step, device=tensor.device)
    return places // width, places % width


def significant_digits(tensor: torch.Tensor) -> int:
    """The most binary digits that an element of a sample needs: 24 in fp32, 11 once it was fp16, 8 once it was bf16."""
    fractions: int = reduce(or_, sample(tensor)[::16].float().view(torch.int32).tolist(), 1 << FRACTION_BITS)
    return FRACTION_BITS + 2 - (fractions & -fractions).bit_length()


SETTLING_SECONDS = (0.02, 0.2)
"""Pauses before live tensors are counted again where several processes train."""
A_NUMBER = 1024
"""Bytes of the storage of one at most: that of a mean of squares is as large as the squares were."""


def live_tensors(device_type: str) -> tuple[int, int]:
    """Number and bytes of the distinct storages that Python can reach on this kind of device, whole numbers left out.

    So are single numbers without a graph, as a history of losses holds them. A data set may keep the tokens of each row
    that it was asked for; what leaks of a forward pass are floating numbers.
    gloo's threads hold a collective's tensor for a moment after it has returned, on a busy machine for many: 6 of 57
    healthy runs of two processes seemed to leak it. So several are counted there, and the fewest are the answer.
    """
    storages = live_storages(device_type)
    return len(storages), sum(storages.values())


def live_storages(device_type: str, known: list[torch.Tensor] | None = None) -> dict[int, int]:
    """Return the bytes of each storage that `live_tensors` counts, by its address; of `known` tensors alone."""
    counts = [_live(device_type, known)]
    if distributed.is_initialized() and distributed.get_world_size() > 1:
        for seconds in SETTLING_SECONDS:
            time.sleep(seconds)
            counts.append(_live(device_type))
    return min(counts, key=lambda found: (len(found), sum(found.values())))


def address(tensor: torch.Tensor) -> int:
    """Return where a tensor's storage lies, of a sparse one that of its values; 0 of one that torch.func transforms."""
    with suppress(RuntimeError, ValueError):  # the latter of a parameter that a lazy module has yet to make
        return (tensor if tensor.layout is torch.strided else tensor.coalesce().values()).untyped_storage().data_ptr()
    return 0


LOOKED_FOR = torch.nn.Module, torch.optim.Optimizer, LRScheduler, DataLoader, torch.amp.GradScaler
"""Classes whose objects one look finds together, beside tokenizers."""
_LOOKED: list[Any] = []


def living(kind: type[K] | tuple[type, ...]) -> list[K]:
    """Return the objects of this class that the interpreter knows of."""
    known = _LOOKED if isinstance(kind, type) and issubclass(kind, _looked_for()) else []
    things = known or gc.get_objects()
    kinds = {each for each in set(map(type, things)) if issubclass(each, kind)}  # 100,000 objects are of few classes
    return [thing for thing in things if type(thing) in kinds]


def _looked_for() -> tuple[type, ...]:
    loaded: Any = sys.modules.get("transformers.tokenization_utils_base")
    return LOOKED_FOR if loaded is None else (*LOOKED_FOR, loaded.PreTrainedTokenizerBase)


@contextmanager
def looked_once() -> Iterator[None]:
    """Have `living` look through the interpreter's objects once for the whole block: each look takes 0.2 s."""
    _LOOKED[:] = living(_looked_for())
    try:
        yield
    finally:
        _LOOKED.clear()


def _live(device_type: str, known: list[torch.Tensor] | None = None) -> dict[int, int]:
    storages: dict[int, int] = {}
    for thing in known or living(torch.Tensor):  # less those that were frozen before the training began
        # a DTensor has no storage of its own; its part is found by itself
        if thing.device.type != device_type or hasattr(thing, "to_local") or not thing.is_floating_point():
            continue
        # torch.compile keeps tensors that have a shape alone, lazy modules some without one, sparse ones have two
        with suppress(RuntimeError, ValueError):
            storage = thing.untyped_storage()
            if thing.requires_grad or thing.dim() or storage.nbytes() > A_NUMBER:
                storages[storage.data_ptr()] = storage.nbytes()
    return storages


def relative_difference(value: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the largest absolute difference over the largest absolute value of `wanted`."""
    return float((value - wanted).float().abs().max() / wanted.float().abs().max())


def relative_error(got: torch.Tensor, wanted: torch.Tensor, least: torch.Tensor | float = 0.0) -> float:
    """Norm of the difference over that of `wanted`, which is at least `least`; 0 where both are equal, or nothing."""
    got, wanted = got.detach(), wanted.detach().to(got.device)
    difference = float(torch.linalg.vector_norm(got - wanted))  # 20 us a call, where Tensor.norm and where take 60
    size = max(float(torch.linalg.vector_norm(wanted)), float(least))
    return difference and (difference / size if size else math.inf)


def differences(got: Iterable[torch.Tensor], wanted: Iterable[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the norms of each difference and each wanted tensor, in turn: all at once would be a copy of the model."""
    moved = ((a, b.to(a.device)) for a, b in zip(got, wanted, strict=True))  # what is wanted may lie on the CPU
    pairs = [torch.stack([(a - b).float().norm(), b.norm().float()]) for a, b in moved]
    errors, norms = torch.stack([pair.to(pairs[0].device) for pair in pairs], dim=1)
    return errors, norms


def worst(errors: Mapping[str, float], none: float = math.nan) -> tuple[str, float]:
    """Return the name and the size of the largest error, NaN counting as the largest of all; ("", none) without any."""
    return max(errors.items(), key=lambda item: or_infinite(item[1]), default=("", none))


def counted(values: Iterable[object]) -> dict[str, int]:
    """Return how often each value occurs, by its spelling and in its order."""
    return dict(sorted(Counter(map(str, values)).items()))


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
