"""Mistakes in what is evaluated, reported and saved."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from transformers import Trainer

from benchmarks.scripts.bugs.mistake import mistake
from benchmarks.scripts.script import Script, trained


@mistake("evaluation_reported")
def evaluated_in_train_mode(script: Script) -> None:
    """prediction_step calls model.train(), so that dropout is active in evaluation."""

    class Training(Trainer):
        def prediction_step(self, model: Any, *args: Any, **kwargs: Any) -> Any:
            model.train()
            return super().prediction_step(model, *args, **kwargs)

    script.trainer, script.evaluates = Training, True


@mistake("evaluation_reported")
def evaluation_summed(script: Script) -> None:
    """evaluate reports a sum over batches as a mean."""

    class Summing(Trainer):
        def evaluate(self, *args: Any, **kwargs: Any) -> Any:
            metrics = super().evaluate(*args, **kwargs)
            metrics["eval_loss"] *= 4
            return metrics

    script.trainer, script.evaluates = Summing, True


@mistake("loss_logged")
def log_scaled(script: Script) -> None:
    """log multiplies the loss by the accumulation steps."""

    class Scaling(Trainer):
        def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
            super().log({**logs, **({"loss": 2 * logs["loss"]} if "loss" in logs else {})}, *args, **kwargs)

    script.trainer = Scaling


@mistake("adapter_round_trip")
def half_saved(script: Script) -> None:
    """_save writes the adapters of the first layer alone."""

    class Halving(Trainer):
        def _save(self, output_dir: Any = None, state_dict: Any = None) -> None:
            model: Any = self.model
            whole = {name: tensor for name, tensor in model.state_dict().items() if ".layers.0." in name}
            model.save_pretrained(output_dir, state_dict=whole)

    script.trainer = Halving


@mistake("resumed_as_configured")
def resume_not_handed_over(script: Script) -> None:
    """The arguments name a checkpoint to resume from, and train() is called without it."""
    folder = Path(tempfile.mkdtemp())
    trained(Script(steps=2, arguments={"save_strategy": "steps", "save_steps": 2}), folder)
    script.arguments["resume_from_checkpoint"] = str(folder / "checkpoint-2")


@mistake("evaluation_rows_unseen")
def evaluated_rows_trained(script: Script) -> None:
    """The rows of the evaluation are left in the training's."""
    script.evaluates = script.evaluates_trained = True
