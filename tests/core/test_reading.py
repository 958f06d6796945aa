"""Files that nobody should have written: an error at once, with the reason, whatever lies under the name."""

from __future__ import annotations

import os
import time

import pytest

from tunecheck.config.source import parse
from tunecheck.core.errors import DataError, HistoryError, SuiteError, TraceError
from tunecheck.core.files import YAML_BYTES, parse_json
from tunecheck.core.records import TEXT, read_records
from tunecheck.core.trace import read
from tunecheck.hardware.locks import OwnedLock
from tunecheck.history.baseline import read_baseline
from tunecheck.history.store import Store
from tunecheck.results.stored import VERDICTS
from tunecheck.training.data import read_rows

READERS = {
    "a trace": (read, TraceError),
    "a verdict": (VERDICTS.read, TraceError),
    "a baseline": (read_baseline, HistoryError),
    "a store": (lambda path: Store(path).entries(), HistoryError),
    "rows": (lambda path: read_rows(path, "train"), DataError),
    "texts": (lambda path: read_records(path, *TEXT), DataError),
    "a YAML": (lambda path: _raise(parse(path, "x").problems), SuiteError),
}
BOMB = "a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)
)


def _raise(problems):
    raise SuiteError("; ".join(problems))


@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_regular_file_is_refused_at_once(reader, tmp_path):
    """A pipe would wait for its writer, a device has no end."""
    read_it, error = READERS[reader]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, words in ((pipe, "not a regular file"), (tmp_path, "s a directory"), (os.devnull, "not a regular file")):
        started = time.monotonic()
        with pytest.raises(error, match=words):
            read_it(type(tmp_path)(path))
        assert time.monotonic() - started < 1


@pytest.mark.parametrize("reader", [name for name in READERS if name not in ("a store", "rows", "texts")])
def test_a_file_that_is_too_large_is_not_read(reader, tmp_path):
    """Its size is in its inode: 1 TiB of holes costs nothing."""
    read_it, error = READERS[reader]
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(2**40)
    started = time.monotonic()
    with pytest.raises(error, match="has 1 TiB; at most"):
        read_it(path)
    assert time.monotonic() - started < 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BOMB, "aliases expand it to .* values; at most 20,000 are read"),
        ("a: " + "[" * 1000, "nested more than 40 levels deep"),
        ("- " * 5000, "nested more than 40 levels deep"),
        ("x: 1\n" * (YAML_BYTES // 5 + 1), "has 64 KiB; at most 64 KiB are read"),
    ],
    ids=["aliases", "flow", "block", "long"],
)
def test_a_yaml_that_would_fill_the_memory_is_refused_at_once(text, words, tmp_path):
    """Nine levels of aliases took more than 20 s, and six 3.3 s."""
    path = tmp_path / "run.yaml"
    path.write_text(text)
    started = time.process_time()
    with pytest.raises(SuiteError, match=words):
        _raise(parse(path, "x").problems)
    assert time.process_time() - started < 2


def test_json_that_is_nested_too_deeply_is_no_json():
    """Its parser fills Python's stack."""
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json("[" * 100_000)


def test_a_lock_whose_holder_cannot_be_read_has_no_known_holder(tmp_path):
    """A pipe in its place is not waited for."""
    lock = OwnedLock(tmp_path / "x.lock")
    os.mkfifo(tmp_path / "x.lock")

    assert lock.holder == "?"
