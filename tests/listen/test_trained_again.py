"""A script that trains a model a second time, as a notebook's cell that runs again, is judged each time. fp32, CPU."""

from __future__ import annotations

import pytest

from benchmarks.scripts.script import Script, judged, plain_loop, trainer_of
from tunecheck.listen.hf_trainer import TrainerListener
from tunecheck.listen.launch import rows_of
from tunecheck.listen.options import Options


@pytest.mark.parametrize("adapters", [True, False], ids=["lora", "full"])
@pytest.mark.parametrize("trainers", [1, 2], ids=["train() twice", "two Trainers"])
def test_a_second_training_of_a_model(adapters, trainers, tmp_path):
    """It begins with weights that are in no file, and with an optimizer that has steps behind it."""
    script = Script(steps=3, rows=12)
    script.lora = script.lora if adapters else None
    model, tokenizer = script.model_and_tokenizer()
    rows = script.examples(tokenizer)
    made = [trainer_of(script, model, tokenizer, rows, tmp_path / "out") for _ in range(trainers)]
    options = Options(folder=str(tmp_path), name="script", steps=3)
    for trainer in (made[0], made[-1]):
        with TrainerListener(trainer, options):
            trainer.train()

    rows = rows_of(tmp_path, options, 0)
    assert [(row.outcome, [finding.detail for finding in row.failed]) for row in rows] == [("pass", [])] * 2
    assert all("updates_match_adamw" in {finding.check for finding in row.passed} for row in rows)


def test_a_loop_that_is_called_again_with_another_optimizer(tmp_path):
    """The first one's steps are judged."""

    def twice(script, model, batches):
        plain_loop(script, model, batches)
        plain_loop(script, model, batches)

    row = judged(Script(steps=3, rows=12, loop=twice), tmp_path, steps=10)

    assert row.outcome == "pass", [finding.detail for finding in row.failed]
    assert "weights_change_only_in_steps" in {finding.check for finding in row.passed}
    reasons = {finding.check: finding.detail for finding in row.unjudged}
    assert "from step 3 another AdamW" in reasons["trainable_set"]
