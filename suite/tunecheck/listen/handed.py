"""What a script loads into its model, and what its loaders' workers hand out: noted from the import of torch on.

Both happen before anything is listened to. Imports nothing that the program might not.
"""

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

MOST_BATCHES = 64
"""Of a loader that are looked at."""
MOST_LOADERS = 4
"""Iterators of loaders that are looked at."""
LARGE_SHARE = 0.5
"""Of a state dict: whoever loads a part of one on purpose does not leave out as much that would fit."""


@dataclass(slots=True, eq=False)
class Load:
    """A state dict that was loaded into a module."""

    into: str
    offered: int
    taken: int
    fits: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Name of a tensor that none was loaded into, to that of one which would fit, and the digest of its values."""
    values: frozenset[str] = frozenset()
    """Digests of all that was offered, where nothing of it was taken."""


_LOADS: WeakKeyDictionary[Any, list[Load]] = WeakKeyDictionary()
_ROUNDS: WeakKeyDictionary[Any, list[str]] = WeakKeyDictionary()
"""Iterator of a loader to the digests of its batches."""
_KEPT: list[tuple[int, list[str]]] = []
"""Workers of a loader, and the digests of its batches: they outlive the iterator."""


def loading(module: Any, state_dict: Mapping[str, Any], *_: Any, **__: Any) -> Callable[[Any], None] | None:
    """A state dict is about to be loaded into this module. Return what notes what was taken of it."""
    if not state_dict:
        return None

    def loaded(result: Any) -> None:
        unexpected, missing = set(getattr(result, "unexpected_keys", ())), getattr(result, "missing_keys", ())
        load = Load(type(module).__name__, len(state_dict), len(state_dict) - len(unexpected & state_dict.keys()))
        if unexpected:
            tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            pairs = _fitting(unexpected, [name for name in missing if name in tensors])
            fits = {name: other for name, other in pairs if _shape(state_dict[other]) == _shape(tensors[name])}
            if not load.taken or len(fits) >= LARGE_SHARE * load.offered:
                load.fits = {name: (other, _value(state_dict[other])) for name, other in fits.items()}
            if not load.taken:
                load.values = frozenset(_value(tensor) for tensor in state_dict.values() if _shape(tensor) is not None)
        _LOADS.setdefault(module, []).append(load)

    return loaded


def loads_of(model: Any) -> Iterator[tuple[Load, list[str]]]:
    """Yield what was loaded last into each part of the model, with what was left out and would have fitted.

    What a script has copied by itself since then is not left out.
    """
    for module in model.modules():
        if module not in _LOADS:
            continue
        load, tensors = _LOADS.pop(module)[-1], {}
        if load.fits or load.values:
            tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        if load.values and load.values & {_value(tensor) for tensor in tensors.values()}:
            load.taken = len(load.values)
        left = {n: other for n, (other, value) in load.fits.items() if n in tensors and _value(tensors[n]) != value}
        yield load, [f"{other} (the model has {name})" for name, other in left.items()]


def _fitting(offered: Iterable[str], missing: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each missing name with an offered one that differs from it by a prefix, or by one part within, alone.

    A part within is peft's name of an adapter, say, which its files do not have.
    """
    by_end: dict[str, list[str]] = {}
    held = set(offered)
    shortened = {rest: name for name in held for rest in _less_one_part(name)}
    for name in held:
        by_end.setdefault(".".join(name.split(".")[-2:]), []).append(name)
    for name in missing:
        within = next((rest for rest in _less_one_part(name) if rest in held), shortened.get(name))
        if within is not None:
            yield name, within
            continue
        for other in by_end.get(".".join(name.split(".")[-2:]), ()):
            if name.endswith(f".{other}") or other.endswith(f".{name}"):
                yield name, other
                break


def _less_one_part(name: str) -> Iterator[str]:
    """Yield the name without each of its parts but the last."""
    parts = name.split(".")
    yield from (".".join([*parts[:at], *parts[at + 1 :]]) for at in range(len(parts) - 1))


def _shape(tensor: Any) -> Any:
    return getattr(tensor, "shape", None)


def _value(tensor: Any) -> str:
    from tunecheck.listen.saves import value_of

    return value_of(tensor.detach())


def handing_out(iterator: Any) -> Callable[[Any], None] | None:
    """Workers are about to hand out a batch. Return what notes it, of those that each have a data set of their own."""
    if iterator not in _ROUNDS:
        copied = isinstance(iterator._dataset, sys.modules["torch.utils.data"].IterableDataset)
        if len(_KEPT) >= MOST_LOADERS or not copied or iterator._num_workers < 2:
            return None
        _ROUNDS[iterator] = []
        _KEPT.append((iterator._num_workers, _ROUNDS[iterator]))
    noted = _ROUNDS[iterator]
    return (lambda batch: noted.append(_digest(batch))) if len(noted) < MOST_BATCHES else None


def rounds_handed_out() -> Iterator[tuple[int, list[list[str]]]]:
    """Yield for each loader its workers and their rounds of batches, each by its digest."""
    while _KEPT:
        workers, digests = _KEPT.pop(0)
        yield workers, [digests[at : at + workers] for at in range(0, len(digests) - workers + 1, workers)]


def _digest(batch: Any) -> str:
    found = hashlib.sha256()
    for part in parts_of(batch):
        found.update(part)
    return found.hexdigest()


def parts_of(batch: Any) -> Iterator[bytes]:
    """Yield the bytes of all tensors and texts of a batch."""
    if isinstance(batch, Mapping):
        batch = batch.values()
    if hasattr(batch, "detach"):
        import torch

        yield batch.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    elif isinstance(batch, str | bytes) or not isinstance(batch, Iterable):
        yield repr(batch).encode()
    else:
        for part in batch:
            yield from parts_of(part)
