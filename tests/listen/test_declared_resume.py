"""Which checkpoint a Trainer resumes from, and which rows of an epoch are to come: none is guessed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarks.scripts.script import Script, judged
from tunecheck.listen.hf_declared import declared_resume, rows_done


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


def test_rows_that_a_loader_drops_belong_to_no_epoch(tmp_path):
    """Of 12 rows in batches of 5, the third batch of the training begins the second epoch. In fp32."""
    arguments = {"dataloader_drop_last": True, "per_device_train_batch_size": 5, "gradient_accumulation_steps": 1}
    row = judged(Script(arguments=arguments, rows=12, steps=4), tmp_path)

    assert [*row.failed, *row.suspected] == []
    assert "10 rows of an epoch" in next(f.detail for f in row.findings if f.check == "rows_come_once")


@pytest.mark.parametrize(("step", "epoch", "share"), [(0, 0.0, 1 / 6), (2, 1.0, 1 / 6), (3, 1.5, 7 / 12)])
def test_what_was_done_and_what_is_dropped_does_not_come(step, epoch, share, tmp_path):
    """Of 12 rows in batches of 5, ten make an epoch, and one that is half done has five left."""
    arguments = SimpleNamespace(dataloader_drop_last=True, train_batch_size=5, world_size=1)
    trainer = SimpleNamespace(args=arguments, train_dataset=range(12))
    state = SimpleNamespace(global_step=step, epoch=epoch)

    assert rows_done(trainer, state, tmp_path / "watch-1.jsonl") == (pytest.approx(share), frozenset())


class Stream:
    """Rows that nobody has counted, as those of a wrapper around an iterable data set."""

    def __len__(self):
        """Nothing has a length here."""
        raise TypeError


def test_a_stream_drops_no_share(tmp_path):
    """Nothing is known of its epochs."""
    arguments = SimpleNamespace(dataloader_drop_last=True, train_batch_size=5, world_size=1)
    trainer = SimpleNamespace(args=arguments, train_dataset=Stream())

    found = rows_done(trainer, SimpleNamespace(global_step=0, epoch=0.0), tmp_path / "watch-1.jsonl")
    assert found == (0.0, frozenset())
