"""Processes that train together, or at once, and leave a trace each."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from tunecheck.listen.options import Options, new_trace_file, rank_and_processes


def distributed(*, begun):
    """A torch.distributed of which this process is the second of four."""
    return SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: begun, get_rank=lambda: 1, get_world_size=lambda: 4
    )


@pytest.mark.parametrize(
    ("module", "wanted"),
    [(None, (2, 3)), (distributed(begun=False), (2, 3)), (distributed(begun=True), (1, 4))],
    ids=["not imported", "not begun", "begun"],
)
def test_a_process_group_tells_more_than_the_environment(module, wanted, monkeypatch):
    """A script that spawns its processes sets nothing there."""
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setitem(sys.modules, "torch.distributed", module)

    assert rank_and_processes() == wanted


def test_without_either_a_process_is_alone(monkeypatch):
    """As most are."""
    monkeypatch.setitem(sys.modules, "torch.distributed", None)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)

    assert rank_and_processes() == (0, 1)


def test_processes_that_train_at_once_share_no_file(tmp_path):
    """Each takes the next number that is free; a folder that refuses is told of by what writes there."""
    options = Options(folder=str(tmp_path), name="train")

    files = [new_trace_file(options, 1, rank) for rank in (0, 0, 1, 0)]

    assert [file.name for file in files] == [
        "watch-train.jsonl",
        "watch-train-2.jsonl",
        "watch-train-rank1.jsonl",
        "watch-train-3.jsonl",
    ]
    missing = Options(folder=str(tmp_path / "missing"), name="train")
    assert new_trace_file(missing, 1, 0).name == "watch-train.jsonl"
