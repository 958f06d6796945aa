"""Which rows a loader loaders, as each of several processes notes it."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from tunecheck.listen import loaders
from tunecheck.listen.imports import hear

ROWS = [{"row": number, "text": str(number)} for number in range(10)]


@pytest.fixture
def two_processes(monkeypatch):
    """Loaders are listened to, as the first of two processes does."""
    monkeypatch.setattr(loaders, "rank_and_processes", lambda: (0, 2))
    monkeypatch.setattr(loaders, "_last", None)
    iterator = torch.utils.data.dataloader._BaseDataLoaderIter
    monkeypatch.setattr(iterator, "_next_index", inspect.unwrap(iterator._next_index))
    with hear(torch):
        yield monkeypatch


def numbers(loader):
    """The rows of a pass, as they come."""
    return tuple(row for batch in loader for row in batch["row"].tolist())


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "persistent_workers": True}], ids=["here", "by a worker"])
def test_every_pass_is_noted(two_processes, options):
    """In the order in which its rows are trained on, also where the same workers go on, without a first look."""
    torch.manual_seed(0)
    loader = DataLoader(ROWS, batch_size=4, shuffle=True, **options)
    next(iter(DataLoader(ROWS[:3])))
    if not options:  # workers draw ahead, of ten rows all
        next(iter(loader))
    passes = [numbers(loader)]
    tell = loaders.of_training()
    passes += [numbers(loader) for _ in range(loaders.MOST_PASSES)]

    seen = tell()
    assert seen.passes == tuple(passes[: loaders.MOST_PASSES])
    assert (seen.dataset_rows, seen.batch, seen.batches) == (10, 4, 3)
    assert seen.columns == loaders.content_of(ROWS)


def test_what_has_no_numbers_tells_none(two_processes):
    """A stream; a sampler of pairs; a process that trains alone."""

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(ROWS)

    class Pairs(Dataset):
        def __getitem__(self, pair):
            return ROWS[pair[0]]

    next(iter(DataLoader(Stream())))
    assert loaders.of_training() is None

    next(iter(DataLoader(Pairs(), sampler=[(0, 1), (2, 3)])))
    seen = loaders.of_training()()
    assert (seen.passes, seen.columns, seen.dataset_rows) == (((),), (), 0)

    two_processes.setattr(loaders, "_last", None)
    two_processes.setattr(loaders, "rank_and_processes", lambda: (0, 1))
    next(iter(DataLoader(ROWS)))
    assert loaders.of_training() is None


def test_a_sampler_of_batches_without_a_length_is_noted(two_processes):
    """As one is that fills batches by tokens."""

    class Filled(BatchSampler):
        def __len__(self):
            raise TypeError

    next(iter(DataLoader(ROWS, batch_sampler=Filled(SequentialSampler(ROWS), 3, False))))
    assert loaders.of_training()().batches == 0


class Held(Dataset):
    """A data set of the script's own, none of whose code may run."""

    def __init__(self, rows, **others):
        vars(self).update(rows=rows, **others)

    def __len__(self):
        """As many as it holds."""
        return len(self.rows)

    def __getitem__(self, number):
        """Nobody but the loader calls this."""
        raise NotImplementedError


TENSORS = torch.arange(12.0).view(6, 2)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (ROWS[:6], ROWS[:6], True),
        (ROWS[:6], ROWS[1:7], False),
        (Held(ROWS), Held(list(ROWS), path="/of/rank/1"), True),
        (Held(ROWS), Held(ROWS[::-1]), False),
        (TensorDataset(TENSORS), TensorDataset(TENSORS.clone()), True),
        (TensorDataset(TENSORS), TensorDataset(TENSORS.roll(1, 0)), False),
        (Subset(Held(ROWS), range(0, 10, 2)), Subset(Held(ROWS), [0, 2, 4, 6, 8]), True),
        (Subset(Held(ROWS), range(0, 10, 2)), Subset(Held(ROWS), range(1, 10, 2)), False),
        (Subset(Held(ROWS), range(5)), Subset(Held(ROWS[::-1]), range(5)), False),
    ],
)
def test_data_sets_are_known_by_what_they_hold(one, other, alike):
    """Without a call of the script's own code."""
    assert loaders.content_of(one)
    assert (loaders.content_of(one) == loaders.content_of(other)) is alike


class Shown:
    """An image of PIL's, which is told by its address."""

    def __repr__(self):
        return f"<PIL.Image.Image image mode=RGB size=32x32 at {hex(id(self))}>"


@pytest.mark.parametrize("dataset", [[], Held([object()]), Held([Shown()]), Held({}), object()])
def test_data_sets_that_hold_no_plain_rows_are_not_known(dataset):
    """Nothing is said of them."""
    assert loaders.content_of(dataset) == ()


def test_two_that_listen_hear_each_batch_once(monkeypatch):
    """A context in a script that the command watches comes second, and its end leaves the first one listening."""
    calls = []
    monkeypatch.setattr(loaders, "drawing", lambda iterator: calls.append(iterator))
    first, second = hear(torch), hear(torch)
    batches = DataLoader([1.0, 2.0, 3.0], batch_size=2)
    for undone in (second, first, None):
        calls.clear()
        assert len([*batches]) == 2
        heard = len(calls)
        if undone is not None:
            undone.close()
        assert heard == (0 if undone is None else 3)  # the end of the rows is asked for, too
