"""Rows of an evaluation are looked up among those of the training, where reading them costs nothing."""

from __future__ import annotations

from types import SimpleNamespace

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from tunecheck.listen import trained_model
from tunecheck.listen.hf_trainer import shared_rows
from tunecheck.listen.loaders import content_of, rows_of


class Table:
    """What `datasets` calls a Dataset, as far as it is read."""

    __module__ = "datasets.arrow_dataset"

    def __init__(self, rows, kind=None):
        self.rows, self.format = rows, {"type": kind}
        self.column_names = [*rows[0], "text"]

    def __len__(self):
        return len(self.rows)

    def select_columns(self, names):
        """Return the table of these columns alone; texts are not read."""
        return Table([{name: row[name] for name in names} for row in self.rows], self.format["type"])

    def __getitem__(self, part):
        """The rows, column by column."""
        kept = self.rows[part] if isinstance(part, slice) else [self.rows[at] for at in part]
        return {name: [row[name] for row in kept] for name in self.column_names[:-1]}


class OfItsOwn(list):
    """Makes its rows when they are read."""

    def __getitem__(self, at):
        raise AssertionError("read")


def rows(*firsts):
    """Rows of tokens that begin with these."""
    return [{"input_ids": [first, *range(30)]} for first in firsts]


def pairs(*firsts):
    """Rows of a chosen and a rejected answer, as TRL's DPOTrainer keeps them."""
    return [{"prompt_ids": [0] * 30, "chosen_ids": [first] * 30, "rejected_ids": [0] * 30} for first in firsts]


@pytest.mark.parametrize(
    ("trained", "evaluated", "found"),
    [
        (rows(1, 2, 3), rows(3, 4), (2, 1, 3)),
        (Table(pairs(1, 2, 3)), Table(pairs(2, 3)), (2, 2, 3)),
        (Table(pairs(1, 2, 3)), Table(pairs(4, 5)), (2, 0, 3)),
        (Table(rows(1, 2, 3)), Table(rows(1, 2)), (2, 2, 3)),
        (Table(rows(1, 2, 3), "custom"), rows(3), None),
        (rows(1), {"test": rows(1)}, (1, 1, 1)),
        (rows(1), None, None),
        ([{"text": "a"}], rows(1), None),
        (SimpleNamespace(rows=3), rows(1), None),
        (OfItsOwn(rows(1)), rows(1), None),
    ],
    ids=[
        "lists",
        "pairs",
        "other pairs",
        "tables",
        "transformed",
        "a set by name",
        "no evaluation",
        "texts",
        "another",
        "a list of its own",
    ],
)
def test_rows_are_looked_up(trained, evaluated, found):
    """Nothing is said of data sets whose reading may cost anything."""
    seen = shared_rows(SimpleNamespace(train_dataset=trained, eval_dataset=evaluated))
    assert [(one.rows, one.among, one.trained) for one in seen] == ([found] if found else [])


def test_tables_are_known_by_their_tokens():
    """Those of two ranks, whose shards a sampler shares out once more."""
    held = [Table(rows(*firsts)) for firsts in ((1, 2, 3, 4), (1, 2, 3, 4), (5, 6, 7, 8))]
    one, same, other = map(content_of, held)

    assert one == same != other
    assert content_of(Table(rows(1, 2), "custom")) == ()


class OfTexts:
    """A data set of the script's own, whose rows are made as they are read."""

    def __init__(self, texts, **others):
        self.texts, self.labels = texts, [number % 2 for number in range(len(texts))]
        vars(self).update(others)

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, at):
        raise AssertionError("read")


class Feature:
    """A row as old examples have it."""

    def __init__(self, *ids):
        self.input_ids, self.guid = [*ids], None


def texts(*numbers):
    """Texts of a length that tells them apart."""
    return [f"this is the text of number {number}" for number in numbers]


@pytest.mark.parametrize(
    ("trained", "evaluated", "found"),
    [
        (OfTexts(texts(*range(8))), OfTexts(texts(*range(8))), (8, 8, 8)),
        (OfTexts(texts(*range(8))), OfTexts(texts(6, 7, 8, 9)), (4, 2, 8)),
        (OfTexts(texts(*range(8))), texts(20, 21), None),
        (OfTexts([f"{n}.png" for n in range(8)]), OfTexts([f"{n}.png" for n in range(8)]), None),
        (OfTexts([f"the-picture-of-number-{n}.png" for n in range(8)]), OfTexts(["a", "b"]), None),
        (OfTexts(texts(*[1] * 8)), OfTexts(texts(*[1] * 8)), None),
        (OfTexts([iter("a text of its own")] * 8), OfTexts([iter("a text of its own")] * 8), None),
        (OfTexts([Feature(*range(n, n + 30)) for n in range(8)]), OfTexts([Feature(*range(30))]), (1, 1, 8)),
        (OfTexts(torch.arange(80).view(8, 10)), OfTexts(torch.arange(40, 80).view(4, 10)), (4, 4, 8)),
        (OfTexts(numpy.arange(80.0).reshape(8, 10)), OfTexts(numpy.arange(20.0).reshape(2, 10)), (2, 2, 8)),
        (OfTexts([object()] * 8, ids=torch.arange(8)), OfTexts([object()] * 8, ids=torch.arange(8)), None),
    ],
    ids=[
        *("the same", "some", "another kind", "short names", "names of files", "all alike", "iterators"),
        *("objects", "tensors", "arrays", "numbers"),
    ],
)
def test_rows_of_data_sets_that_only_the_script_reads(trained, evaluated, found):
    """Their columns tell what is in both, where these are text or numbers."""
    seen = shared_rows(SimpleNamespace(train_dataset=trained, eval_dataset=evaluated))
    assert [(one.rows, one.among, one.trained) for one in seen] == ([found] if found else [])


ROWS, OTHERS = [*range(12)], [*range(4)]
TEXTS, TENSOR = [[number] * 30 for number in range(12)], torch.randn(12, 9)


@pytest.mark.parametrize(
    ("loaders", "found"),
    [
        ([(ROWS, True), (ROWS, False)], [(12, 12, 12)]),
        ([(ROWS, True), (OTHERS, False)], []),
        ([(ROWS, True), (ROWS, False), (OTHERS, False)], []),
        ([(ROWS, True)], []),
        ([(ROWS, True), (ROWS, True)], []),
        ([], []),
        ([(TEXTS, True), (TEXTS[:4], False)], [(4, 4, 12)]),
        ([(TensorDataset(TENSOR[:8]), True), (TensorDataset(TENSOR[6:]), False)], [(6, 2, 8)]),
        ([(TensorDataset(TENSOR[:8]), True), (TensorDataset(TENSOR[8:]), False)], []),
        ([(TEXTS, True), (Subset(TEXTS, range(5)), False)], [(5, 5, 12)]),
        ([(Subset(ROWS, range(5, 12)), True), (Subset(ROWS, range(5)), False)], []),
        ([(TEXTS, True), (TEXTS, False), (OTHERS, False)], []),
        ([(TEXTS, True), (OTHERS, True), (TEXTS, False)], []),
        ([(OfTexts(texts(*ROWS)), True), (OfTexts(texts(*ROWS)), False)], [(12, 12, 12)]),
        ([(OfTexts(texts(*ROWS)), True), (OfTexts(texts(20, 21)), False)], []),
        ([(TensorDataset(TENSOR[:8]), True), (TensorDataset(TENSOR[6:].clone()), False)], [(6, 2, 8)]),
    ],
    ids=[
        *("one for both", "two", "both and another", "one loader", "shuffled twice", "none", "a part of a list"),
        *("tensors that overlap", "tensors that do not", "a part", "two parts", "a look at what is learned"),
        *("a test that is shuffled", "read twice", "two files", "a copy"),
    ],
)
def test_one_data_set_for_training_and_evaluation(loaders, found, monkeypatch):
    """A loop's loaders tell, where one shuffles and another does not."""
    held = [DataLoader(rows, batch_size=2, shuffle=shuffle) for rows, shuffle in loaders]
    monkeypatch.setattr("gc.get_objects", lambda: [object(), *held])

    assert [(seen.rows, seen.among, seen.trained) for seen in trained_model.shared_loaders()] == found


DATA, OTHERS_DATA = torch.arange(100), numpy.arange(100)


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({"train_data": DATA[:90], "val_data": DATA[90:]}, []),
        ({"train_data": DATA[:90], "val_data": DATA[:-90]}, [(10, 10, 90)]),
        ({"train_data": OTHERS_DATA[:90], "valid_data": OTHERS_DATA[85:]}, [(15, 5, 90)]),
        ({"train_data": DATA[:90], "val_rows": DATA[:-90]}, []),
        ({"train_data": [*DATA[:90]], "val_data": [*DATA[:10]]}, []),
        ({"train_data": DATA[:90], "val_data": len}, []),
    ],
    ids=["apart", "the wrong end", "arrays", "other names", "lists", "a function"],
)
def test_variables_of_a_script_that_share_numbers(variables, found, tmp_path):
    """Known by their names, which differ by `train` alone."""
    path = tmp_path / "train.py"
    path.touch()
    begin = eval("lambda seen: seen()", {"__file__": str(path), **variables})
    begin = type(begin)(begin.__code__.replace(co_filename=str(path)), begin.__globals__)
    seen = begin(trained_model.shared_variables)
    assert [(one.rows, one.among, one.trained) for one in seen] == found


def test_rows_that_come_several_times_are_known():
    """As those of a rare class are repeated."""
    trained = OfTexts(texts(*range(8), *range(4)))
    assert len({*rows_of(trained)}) == 8
    assert shared_rows(SimpleNamespace(train_dataset=trained, eval_dataset=OfTexts(texts(3, 20))))[0].among == 1
