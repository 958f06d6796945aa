"""What data loaders draw and what their workers deliver, recorded from the import of torch on.

Only the lengths of the script's data set and sampler are called. Imports nothing that the program might not.
"""

import hashlib
import re
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.utils.data import IterableDataset, RandomSampler, Subset, SubsetRandomSampler

from tunecheck.core.evidence import LoopEvaluations, RowsDrawn, WorkerBatches
from tunecheck.listen.options import rank_and_processes

MOST_PASSES, MOST_ROWS = 3, 1024
"""Passes over a loader, and rows of each, whose numbers are noted."""


@dataclass(slots=True, eq=False)
class _Loader:
    """A loader, known by its sampler of batches."""

    passes: list[list[int]] = field(default_factory=list)
    drawn: int = 0
    batch: int = 0
    iterator: Callable[[], Any] = lambda: None
    draws: int = 0
    """Identity of the sampler's own iterator: workers that stay begin another one with each pass."""

    def drew(self, numbers: Any) -> None:
        """Note a batch; numbers alone, where a sampler draws pairs."""
        rows = [number for number in (numbers if isinstance(numbers, list) else [numbers]) if isinstance(number, int)]
        self.batch = max(self.batch, len(rows))
        self.passes[-1].extend(rows)


_LOADERS: WeakKeyDictionary[Any, _Loader] = WeakKeyDictionary()
_OF_ONE: dict[tuple[Any, ...], _Loader] = {}
"""Loaders of a process that trains alone, by kind and size of their samplers: a loop may make a new one each epoch."""
_last: tuple[_Loader, Any, Any] | None = None
"""Loader that drew last, its sampler of batches and its data set; None once a training has begun with them."""


def drawing(iterator: Any) -> Callable[[Any], None] | None:
    """The numbers of a batch's rows are about to be drawn. Return what notes them."""
    global _last
    for evaluations in _EVALUATIONS:
        evaluations.drawn(iterator)
    alone = rank_and_processes()[1] < 2
    rows: Any = getattr(iterator._index_sampler, "sampler", None)
    if alone and not isinstance(rows, RandomSampler | SubsetRandomSampler):
        return None
    known: Any = _OF_ONE if alone else _LOADERS
    try:
        key = (type(rows), len(rows), iterator._index_sampler.batch_size) if alone else iterator._index_sampler
        loader: _Loader = known.setdefault(key, _Loader())
    except TypeError:  # a list of batches, say, which draws nothing
        return None
    _last = loader, *((None, None) if alone else (iterator._index_sampler, iterator._dataset))
    if loader.iterator() is not iterator or loader.draws != id(iterator._sampler_iter):
        loader.iterator, loader.draws = weakref.ref(iterator), id(iterator._sampler_iter)
        with suppress(Exception):  # without a length
            if loader.drawn < len(iterator._index_sampler):  # a look at the first batch, say, is no pass
                del loader.passes[-1:]
        loader.passes.append([])
        loader.drawn = 0
    loader.drawn += 1
    most = 64 if alone else MOST_ROWS  # of a process that trains alone nothing but the order is asked
    return loader.drew if len(loader.passes) <= MOST_PASSES and len(loader.passes[-1]) < most else None


class Evaluations:
    """Passes over loaders, however long the training goes on: whether a model learns in them, and whether it is noisy.

    No forward pass is hooked: dropout moves torch's random state between two batches, and batch norm counts them.
    """

    def __init__(self, model: Any, noisy: Iterable[Any], steps: Callable[[], int]) -> None:
        learns = [weakref.ref(p) for p in model.parameters() if p.requires_grad]
        self._learns, self._noisy, self._steps = [*learns[:2], *learns[-2:]], WeakSet(noisy), steps
        self._model = weakref.ref(model)
        self._iterator: Callable[[], Any] = lambda: None
        self._before: tuple[Any, ...] = (-1, (), ())
        self._told: list[bool] = []
        self._batches: list[bool] | None = []
        """Whether the model was noisy for each batch of the present pass; None for one in which it learns."""
        self._learnt_noisily: list[bool] = []
        """Whether it was for each batch that it learnt from."""
        _EVALUATIONS[:] = [self]

    def drawn(self, iterator: Any) -> None:
        """The next batch is about to be drawn from this."""
        learns = [p for p in (each() for each in self._learns) if p is not None]
        training = [part for part in self._noisy if part.training]
        counting = [part for part in self._noisy if hasattr(part, "num_batches_tracked")]
        counted = [part for part in counting if part.training]
        noise = [part.num_batches_tracked._version for part in counting]
        if len(counting) < len(self._noisy):
            noise.append(torch.get_rng_state().numpy().tobytes())
            noise += [torch.cuda.get_rng_state(p.device).numpy().tobytes() for p in learns[:1] if p.is_cuda]
        learnt = [(p._version, id(p.grad), getattr(p.grad, "_version", 0)) for p in learns]
        (steps, *before), self._before = self._before, (self._steps(), learnt, noise)
        if steps not in (-1, self._steps()) and before[0] == learnt:  # an optimizer that torch does not see write
            self._told, self._learns = [], []
        elif self._iterator() is not iterator:
            self._told += self._batches or []
            # statistics that are taken anew, as by update_bn
            anew = any(part.momentum in (None, 1.0) for part in counted)
            self._iterator, self._batches = weakref.ref(iterator), None if anew or not learns else []
            self._before = *self._before[:2], None  # a sampler draws its seed with the first batch
        elif before[0] != learnt:
            self._batches = None
            if before[1] is not None:
                self._learnt_noisily.append(before[1] != noise)
        elif self._batches is not None and (not training or before[1] not in (None, noise)):
            self._batches.append(bool(training))
            if training and not counted and self._batches.count(True) == 1 and self._others():
                self._told, self._learns, self._batches = [], [], None

    def _others(self) -> bool:
        """Return whether another model of the class lives, as an average, which may be what is evaluated."""
        from tunecheck.probes.reference.measures import living

        own = {id(part) for part in model.modules()} if (model := self._model()) is not None else set()
        return any(type(each) is type(model) and id(each) not in own for each in living(torch.nn.Module))

    def record(self) -> LoopEvaluations:
        """Return how many batches were evaluated, and how the training ended."""
        _EVALUATIONS.clear()
        told, learnt = [*self._told, *(self._batches or [])], self._learnt_noisily
        quiet = sum(1 for _ in takewhile(lambda noisy: not noisy, reversed(learnt)))
        return LoopEvaluations(passes=len(told), dropping=sum(told), learnt=len(learnt), quiet_at_the_end=quiet)


_EVALUATIONS: list[Evaluations] = []
"""Of the loop that is listened to."""


def of_training() -> Callable[[], RowsDrawn] | None:
    """Return what tells, now and later, which rows the loader that was drawn from last has drawn; None without one."""
    global _last
    if _last is None:
        return None
    (loader, sampler, dataset), _last = _last, None
    if sampler is None:
        del loader.passes[:-1]  # those of another training, with the same seed
    if isinstance(dataset, IterableDataset):
        return None
    size, batches = 0, 0
    content: tuple[str, ...] = ()
    with suppress(Exception):  # without a length, or a column that is read in another way
        size, batches = len(dataset), len(sampler)
        content = content_of(dataset)
    return lambda: RowsDrawn(
        columns=content,
        tokens_alone=_is_table(dataset),
        dataset_rows=size,
        batch=loader.batch,
        batches=batches,
        passes=tuple(map(tuple, loader.passes[:MOST_PASSES])),
    )


def content_of(dataset: Any) -> tuple[str, ...]:
    """Return a digest of three rows of each column: a list, tuple or array as long as the data set."""
    rows = ([column[at] for at in (0, len(column) // 2, len(column) - 1)] for column in _read(dataset))
    return tuple(digest[:16] for digest in map(_digest, rows) if digest is not None)


def _read(dataset: Any, first: int = 0) -> Iterable[Any]:
    """Return a data set's columns; of a library's those of tokens, in the `first` rows or first, middle and last."""
    if not _is_table(dataset):
        return _columns(dataset)
    names = [name for name in dataset.column_names or () if name.endswith("_ids")]  # of pairs, too
    plain = names and dataset.format["type"] != "custom"  # one of the script's own is its code
    rows = slice(first) if first else [0, len(dataset) // 2, len(dataset) - 1]
    return [*dataset.select_columns(names)[rows].values()] if plain and len(dataset) else []


def _is_table(dataset: Any) -> bool:
    """Tell whether it is one of the library datasets."""
    return type(dataset).__module__.startswith("datasets.") and hasattr(dataset, "select_columns")


def _columns(thing: Any, rows: int = -1, depth: int = 4) -> Iterator[Any]:
    """Yield what holds as many things as the data set rows, from the data set inwards."""
    plain, array = isinstance(thing, list | tuple | range), hasattr(thing, "__array__")
    own = len(thing) if hasattr(thing, "__len__") and getattr(thing, "ndim", 1) != 0 else -1
    if (plain or array) and own > 0 and rows in (own, -1):
        yield thing
    elif hasattr(thing, "__getitem__") and not array and depth:
        named = isinstance(thing, Mapping)
        inside = thing if plain else thing.values() if named else getattr(thing, "__dict__", {}).values()
        for part in list(inside)[:16]:
            yield from _columns(part, rows if plain or named else own, depth - 1)


MOST_COMPARED, ELEMENTS = 2000, 256
"""Rows of a data set that are compared with another's, and about as many numbers of each tensor in them."""
FILE_NAME = re.compile(rb"'\S+\.\w{1,5}'")
"""A name that two folders may have alike."""


def rows_of(dataset: Any) -> list[Hashable]:
    """Return the first rows by what their columns hold, or as places in the data set; only lengths run script code."""
    if type(dataset) is Subset:
        rows = rows_of(dataset.dataset)
        return [rows[at] for at in dataset.indices if at < len(rows)]
    found: list[list[bytes]] = []
    columns = _read(dataset, MOST_COMPARED)
    for column in (each for each in columns if hasattr(each, "__array__") or type(each) in (list, tuple)):
        part = column.iloc[:MOST_COMPARED].to_numpy() if hasattr(column, "iloc") else column[:MOST_COMPARED]
        with suppress(TypeError):  # rows that only code of the script's can read
            told = [[one for one in _told(row) if not FILE_NAME.fullmatch(one)] for row in part]
            if 2 * sum(sum(map(len, row)) >= 24 for row in told) > len(told):  # a number tells no row from others
                found.append([hashlib.sha256(b"/".join(row)).digest() for row in told])
    joined = [b"".join(row) for row in zip(*found, strict=True)]
    if joined and len(set(joined)) >= 0.5 * len(joined):  # some are repeated, as those of a rare class
        return [*joined]
    return [(id(dataset), at) for at in range(min(len(dataset), MOST_COMPARED))]


def _told(row: Any, depth: int = 4) -> Iterator[bytes]:
    """Yield the bytes of numbers and texts in containers of Python's and arrays. Raises TypeError for others."""
    if isinstance(row, torch.Tensor):
        sampled = row.detach().reshape(-1)[:: max(1, row.numel() // ELEMENTS)]
        yield sampled.cpu().contiguous().view(torch.uint8).numpy().tobytes()
    elif type(row).__module__ == "numpy" and row.dtype != object:
        yield row.reshape(-1)[:: max(1, row.size // ELEMENTS)].tobytes()
    elif isinstance(row, str | bytes | int | float | None):
        yield repr(row).encode()
    elif type(row) in (list, tuple) and {*map(type, row)} == {int}:  # tokens, a thousand of them in each of many rows
        yield from map(b"%d".__mod__, row)
    else:
        row = row.tolist() if type(row).__module__ == "numpy" else row
        inside = row if type(row) in (list, tuple) else row.values() if type(row) is dict else vars(row).values()
        for part in inside if depth else vars(None):
            yield from _told(part, depth - 1)


MOST_BATCHES, MOST_LOADERS = 64, 4
"""Batches of a loader, and iterators of loaders, that are looked at."""
_ROUNDS: WeakKeyDictionary[Any, list[str]] = WeakKeyDictionary()
"""Iterator of a loader to the digests of its batches."""
_KEPT: list[tuple[int, list[str]]] = []
"""Workers of a loader, and the digests of its batches: they outlive the iterator."""


def delivering(iterator: Any) -> Callable[[Any], None] | None:
    """Workers are about to hand out a batch. Return what notes it, of those that each have a data set of their own."""
    if iterator not in _ROUNDS:
        copied = isinstance(iterator._dataset, IterableDataset)
        if len(_KEPT) >= MOST_LOADERS or not copied or iterator._num_workers < 2:
            return None
        _ROUNDS[iterator] = []
        _KEPT.append((iterator._num_workers, _ROUNDS[iterator]))
    noted = _ROUNDS[iterator]
    full = len(noted) >= MOST_BATCHES
    return None if full else lambda batch: noted.append(_digest(batch) or f"unknown {len(noted)}")


def batches_of_workers() -> Iterator[WorkerBatches]:
    """Yield for each loader how many rounds of batches its workers delivered, and how many of them are alike."""
    while _KEPT:
        workers, digests = _KEPT.pop(0)
        rounds = [digests[at : at + workers] for at in range(0, len(digests) - workers + 1, workers)]
        distinct, alike = len({batches[0] for batches in rounds}), sum(len({*batches}) < workers for batches in rounds)
        yield WorkerBatches(workers=workers, rounds=len(rounds), distinct=distinct, alike=alike)


def _digest(value: Any) -> str | None:
    """Return a digest of all that tells this value from another; None where a part of it cannot be looked into."""
    parts = list(parts_of(value))
    return None if any(part is ... for part in parts) else hashlib.sha256(repr(parts).encode()).hexdigest()


def parts_of(value: Any, depth: int = 6) -> Iterator[object]:
    """Yield what tells this value from another; an ellipsis stands for what cannot be looked into."""
    from tunecheck.probes.reference.measures import word_sums

    if isinstance(value, torch.Tensor) and value.layout is torch.sparse_coo:
        yield from parts_of([value._indices(), value._values(), *value.shape], depth - 1)
    elif isinstance(value, torch.Tensor):
        yield value.dtype, tuple(value.shape)
        readable = value.layout is torch.strided and value.device.type != "meta"
        yield word_sums(value.detach().contiguous().view(-1).view(torch.uint8)) if readable else ...
    elif type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        plain = value.dtype != object  # others hold addresses
        yield (value.dtype, value.shape, hashlib.sha256(value.tobytes()).digest()) if plain else ...
    elif isinstance(value, Mapping) and depth:
        for key in value:
            yield key
            yield from parts_of(value[key], depth - 1)
    elif isinstance(value, list | tuple) and depth:
        for part in value:
            yield from parts_of(part, depth - 1)
    elif isinstance(value, str | bytes | int | float | None):
        yield value
    elif getattr(value, "__dict__", None) and not isinstance(value, torch.nn.Module) and depth:
        yield from parts_of(vars(value), depth - 1)
    else:
        yield ...
