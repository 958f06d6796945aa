"""Which checkpoint a Trainer's arguments name to resume from: none is guessed where none is there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tunecheck.listen.hf_declared import declared_resume


@pytest.fixture
def steps(tmp_path):
    """A function from a value of the argument to the steps of the checkpoint that it names."""
    for at in (4, 8):
        (tmp_path / f"checkpoint-{at}").mkdir()
        (tmp_path / f"checkpoint-{at}" / "trainer_state.json").write_text(f'{{"global_step": {at}}}')
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "trainer_state.json").write_text("[1")

    def read(named):
        named = str(tmp_path / named) if isinstance(named, str) else named
        return declared_resume(SimpleNamespace(output_dir=str(tmp_path), resume_from_checkpoint=named))

    return read


@pytest.mark.parametrize(
    ("named", "expected"),
    [("checkpoint-4", 4), (True, 8), (None, 0), (False, 0), ("checkpoint-9", 0), ("broken", 0)],
)
def test_the_checkpoint_that_is_named_and_there(steps, named, expected):
    """By its folder, or the last one of the output folder; nothing is declared by one that cannot be read."""
    assert steps(named) == expected


def test_nothing_was_saved_yet(tmp_path):
    """A first start of a script that is to go on where it ended."""
    arguments = SimpleNamespace(output_dir=str(tmp_path / "new"), resume_from_checkpoint=True)
    assert declared_resume(arguments) == 0
