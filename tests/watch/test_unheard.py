"""Trainings of a script that end before their first step: said to be that, with the reason. Nothing is trained."""

from __future__ import annotations

import pytest

from suite.watch.launch import rows_of
from suite.watch.listener import Listener
from suite.watch.options import Options


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("num_samples=0"), "the training ended before its first step: ValueError: num_samples=0"),
        (KeyboardInterrupt(), "the training ended before its first step: by Ctrl-C"),
        (None, "the training ended before its first step"),
    ],
    ids=["raises", "interrupted", "no steps"],
)
def test_a_training_without_a_step_could_not_be_judged(error, told, tmp_path):
    """Whatever status the script has."""
    options = Options(folder=str(tmp_path), name="train", steps=5)
    Listener(options).close(error)

    for status in (0, 1):
        [row] = rows_of(tmp_path, options, status)
        assert (row.outcome, row.reason) == ("error", told)


def test_a_training_that_cannot_be_listened_to_says_why(tmp_path, capsys):
    """What went wrong in listening comes before how the training ended."""
    options = Options(folder=str(tmp_path), name="train", steps=5)
    listener = Listener(options)
    listener.tried(lambda: {}["config"])
    listener.close(RuntimeError("of the script's own"))

    [row] = rows_of(tmp_path, options, 1)
    assert row.reason.startswith("this training cannot be listened to: KeyError: 'config'")
    assert "no longer listening" in capsys.readouterr().err
